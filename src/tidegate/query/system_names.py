"""The schema `system` in a statement, written so that DuckDB does not take it for a catalog of its own.

DuckDB has a catalog `system` and refuses a schema of that name as ambiguous. The tables of ours are in a
schema of another name, of the same length, so that DuckDB's errors still point at the right places. No
namespace can have this name.
"""

from __future__ import annotations

import re
from typing import Any

from tidegate.errors import SqlUnsupported
from tidegate.query.scopes import Node, nodes

SYSTEM = "system"
SYSTEM_INSIDE = "syst$m"

_WRITTEN = re.compile(rb'"?(system)"?\s*\.', re.IGNORECASE)


def rename_system(sql: str, tree: Any) -> str:
    """Give the text with our schema's inner name wherever the tree has the outer one."""
    text = bytearray(sql.encode())
    for node in nodes(tree):
        path = _path_of(node)
        if not path or path[0].lower() != SYSTEM:
            continue
        # Places are counted in bytes, and are beyond the text where DuckDB does not know them.
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
    """Give a message of DuckDB with the name that people know."""
    return message.replace(SYSTEM_INSIDE, SYSTEM)


def _path_of(node: Node) -> list[str]:
    """Give the parts of a name that begins with a schema; [] for any other node."""
    if node.get("type") == "BASE_TABLE":
        return [str(node.get("schema_name") or "")]
    parts = node.get("column_names") if node.get("class") == "COLUMN_REF" else None
    return [str(part) for part in parts] if parts and len(parts) > 2 else []
