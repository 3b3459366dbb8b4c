"""Names in the tree of a statement: the visible CTEs, and the schema `system`.

DuckDB looks up a name without a schema among the CTEs that are visible at its position, and then among its
own views. A CTE is visible in the query that it belongs to and in those after it in the same WITH; in itself
only where it is recursive, and then not in its first part.

DuckDB has a catalog `system`, and refuses a schema of that name as ambiguous. The system tables are in a
schema of another name, of the same length, so that DuckDB's errors still have the right positions. No
namespace can have this name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tidegate.errors import SqlUnsupported

Node = dict[str, Any]


def nodes(tree: Any) -> Iterator[Node]:
    """Yield every node."""
    for node, _ in scoped_nodes(tree):
        yield node


def scoped_nodes(tree: Any) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield every node in the order of the text, with the CTEs that are visible there."""
    # A stack instead of recursion: statements nest deeper than Python does.
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


SYSTEM = "system"
SYSTEM_INSIDE = "syst$m"

_WRITTEN = re.compile(rb'"?(system)"?\s*\.', re.IGNORECASE)


def rename_system(sql: str, tree: Any) -> str:
    """Return the text with SYSTEM_INSIDE wherever the tree has the schema SYSTEM."""
    text = bytearray(sql.encode())
    for node in nodes(tree):
        path = _path_of(node)
        if not path or path[0].lower() != SYSTEM:
            continue
        # Positions are counted in bytes, and are beyond the text where DuckDB does not know them.
        place = min(node.get("query_location", len(text)), len(text))
        matched = _WRITTEN.match(text, place)
        if matched is not None:
            text[matched.start(1) : matched.end(1)] = SYSTEM_INSIDE.encode()
        elif node.get("type") == "BASE_TABLE":
            raise SqlUnsupported(
                reason="A system table cannot be read in this way.", hint="Write SELECT … FROM system.<name>."
            )
    return text.decode()


def shown_text(message: str) -> str:
    """Return a message of DuckDB with the schema's public name."""
    return message.replace(SYSTEM_INSIDE, SYSTEM)


def _path_of(node: Node) -> list[str]:
    """Return the parts of a name that begins with a schema; [] for any other node."""
    if node.get("type") == "BASE_TABLE":
        return [str(node.get("schema_name") or "")]
    parts = node.get("column_names") if node.get("class") == "COLUMN_REF" else None
    return [str(part) for part in parts] if parts and len(parts) > 2 else []
