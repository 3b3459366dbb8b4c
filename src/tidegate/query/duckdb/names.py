"""Nodes of a statement's tree, each with the names that WITH defines around it.

DuckDB looks a name without a schema up among the CTEs that are visible at its place, and then among its own
views. A CTE is visible in the query that it belongs to and in those after it in the same WITH; in itself
only where it is recursive, and then not in its first part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]


def nodes(tree: Any) -> Iterator[Node]:
    """Give every node."""
    for node, _ in scoped_nodes(tree):
        yield node


def scoped_nodes(tree: Any) -> Iterator[tuple[Node, frozenset[str]]]:
    """Give every node in the order of the text, and the CTEs that are visible there."""
    # A stack instead of calls: statements nest deeper than Python does.
    stack: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while stack:
        node, visible = stack.pop()
        if isinstance(node, list):
            stack.extend((part, visible) for part in reversed(node))
        elif isinstance(node, dict):
            parts: list[tuple[Any, frozenset[str]]] = []
            inner = visible
            for entry in node.get("cte_map", {}).get("map", ()):
                parts.append((entry["value"], inner))
                inner |= {str(entry["key"]).lower()}
            yield node, inner
            for key, part in node.items():
                if key != "cte_map":
                    is_recursion = node.get("type") == "RECURSIVE_CTE_NODE" and key == "right"
                    seen = inner | {str(node.get("cte_name", "")).lower()} if is_recursion else inner
                    parts.append((part, seen))
            stack.extend(reversed(parts))
