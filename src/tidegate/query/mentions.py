"""The columns that a statement mentions, and which of its outputs are plain columns.

A column that is mentioned nowhere need not be read. Names are compared without regard to the table they may
belong to, and whatever may mean columns without naming them means all: `*`, COLUMNS(…), a table's name used
as a row, columns by number, NATURAL JOIN, a renaming list, PIVOT, DESCRIBE and SUMMARIZE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tidegate.query.scopes import Node, nodes

_ANY_CLASS = frozenset({"STAR", "POSITIONAL_REFERENCE"})
_ANY_TYPE = frozenset({"PIVOT", "SHOW_REF"})


def mentioned_names(tree: Any) -> frozenset[str] | None:
    """Give every name in the statement, in small letters; None where any column may be meant."""
    found: set[str] = set()
    tables: set[str] = set()
    ends: set[str] = set()
    for node in nodes(tree):
        if _means_any(node):
            return None
        if node.get("type") == "BASE_TABLE":
            tables.update((str(node["table_name"]).lower(), str(node.get("alias") or "").lower()))
        elif node.get("class") == "COLUMN_REF":
            ends.add(str(node["column_names"][-1]).lower())
        found.update(text.lower() for text in _texts(node))
    # A table's name at the end of a column's may stand for a whole row.
    return None if tables & ends else frozenset(found)


class PlainOutputs(NamedTuple):
    """A SELECT from one table: for each output the column that it is, '' for another; None for `*`."""

    namespace: str
    name: str
    columns: tuple[str, ...] | None


def plain_outputs(tree: Any) -> PlainOutputs | None:
    """Give the outputs of a SELECT from one table that has a schema; None for any other statement."""
    select = tree["statements"][0]["node"]
    table = select.get("from_table", {}) if select.get("type") == "SELECT_NODE" else {}
    if table.get("type") != "BASE_TABLE" or not table.get("schema_name") or table.get("column_name_alias"):
        return None
    place = (str(table["schema_name"]).lower(), str(table["table_name"]).lower())
    outputs = select["select_list"]
    stars = [output for output in outputs if output.get("class") == "STAR"]
    if not stars:
        return PlainOutputs(*place, tuple(_column_of(output) for output in outputs))
    changed = [value for key, value in stars[0].items() if key.endswith("_list") and value]
    is_plain = len(outputs) == 1 and not changed and not stars[0].get("columns") and not stars[0].get("expr")
    return PlainOutputs(*place, None) if is_plain else None


def _column_of(output: Node) -> str:
    return str(output["column_names"][-1]).lower() if output.get("class") == "COLUMN_REF" else ""


def _means_any(node: Node) -> bool:
    return (
        node.get("class") in _ANY_CLASS
        or str(node.get("type")) in _ANY_TYPE  # of a sample it is an object
        or node.get("ref_type") == "NATURAL"
        or bool(node.get("column_name_alias"))
    )


def _texts(node: Node) -> Iterator[str]:
    """Give the texts that stand directly in a node, in lists too."""
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (part for part in value if isinstance(part, str))
