"""The analysis of a SELECT before it runs: it reads tables by <schema>.<name>, and nothing else.

DuckDB's own parser decides what the text means; this module only walks its tree. What is not on a list here
is refused, so that a new version of DuckDB cannot make more available.

A column that is mentioned nowhere need not be read. Names are compared without regard to the table they may
belong to, and whatever may mean columns without naming them means all: `*`, COLUMNS(…), a table's name used
as a row, columns by number, NATURAL JOIN, a renaming list, PIVOT, DESCRIBE and SUMMARIZE.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.query.duckdb.error_positions import Span, TextRefused, drawn
from tidegate.query.duckdb.functions import (
    FunctionMissing,
    check_call,
    check_column,
    check_table_function,
)
from tidegate.query.duckdb.names import Node, nodes, rename_system, scoped_nodes, shown_text
from tidegate.sql.parser.lexer import line_and_column
from tidegate.sql.parser.limits import QUERY_CHARS_MAX

_ANY_CLASS = frozenset({"STAR", "POSITIONAL_REFERENCE"})
_ANY_TYPE = frozenset({"PIVOT", "SHOW_REF"})


def mentioned_names(tree: Any) -> frozenset[str] | None:
    """Return every name in the statement, in small letters; None where any column may be meant."""
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
    # A table's name at the end of a column's may mean a whole row.
    return None if tables & ends else frozenset(found)


class PlainOutputs(NamedTuple):
    """A SELECT from one table: for each output the column that it is, '' for another; None for `*`."""

    namespace: str
    name: str
    columns: tuple[str, ...] | None


def plain_outputs(tree: Any) -> PlainOutputs | None:
    """Return the outputs of a SELECT from one table that has a schema; None for any other statement."""
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
    """Yield the texts directly in a node, in lists too."""
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (part for part in value if isinstance(part, str))


QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
# The beginning of the names of registered rows; no statement can name them.
ROWS_PREFIX = "tidegate_rows_"

# Frequent names of columns that are keywords.
_KEYWORD_AT_END = re.compile(r'(?<!")\b(offset|user|order|group|end|at)\b(?!")\s*\S*$', re.IGNORECASE)
_MISSING_COLUMN = re.compile(r'Referenced column "([^"]+)"')
# DuckDB suggests similar names of all sessions.
_NEAR_TABLE = re.compile(r'\nDid you mean "[^\n]*')


@dataclass(frozen=True, slots=True)
class AnalyzedSelect:
    """A checked SELECT: its text for DuckDB, and what it names; all names are in small letters.

    `tables` counts how often each (schema, table) is named, `unqualified` are those without a schema,
    `mentioned` holds every name that may be a column (None: all columns are meant).
    """

    sql: str
    tables: Counter[tuple[str, str]]
    unqualified: frozenset[str]
    parameter_count: int
    mentioned: frozenset[str] | None
    outputs: PlainOutputs | None


def read_statement(cursor: Any, sql: str, params: Sequence[Any]) -> AnalyzedSelect:
    """Return the analysis of a text, or raise SqlInvalid or SqlUnsupported."""
    if len(sql) > QUERY_CHARS_MAX:
        raise SqlInvalid(
            reason=f"it is longer than {QUERY_CHARS_MAX} characters.", hint="Bind values as parameters."
        )
    parsed = _only_select(cursor, sql)
    count = _count_parameters(parsed.named_parameters, params)
    try:
        tree = json.loads(
            cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [parsed.query]).fetchall()[0][0]
        )
    except RecursionError as error:
        raise SqlInvalid(
            reason="it is nested too deeply.", hint="Use IN or a list for long chains."
        ) from error
    if tree["error"]:
        raise SqlUnsupported(reason=f"This statement is not supported: {tree['error_message']}")
    try:
        tables, unqualified = _tables(tree)
    except FunctionMissing as missing:
        place = (missing.start, missing.start + missing.length)
        refused = TextRefused.at(str(missing), parsed.query, place)
        raise sql_invalid(refused, refused.text, refused.span) from refused
    text = rename_system(parsed.query, tree)
    return AnalyzedSelect(
        text, tables, frozenset(unqualified), count, mentioned_names(tree), plain_outputs(tree)
    )


def sql_invalid(refused: TextRefused, text: str, span: Span | None) -> SqlInvalid:
    """Return DuckDB's message as an error, with line and column (from 1) where there is a position."""
    message = refused.message
    if "Table with name" in message:
        message = _NEAR_TABLE.sub("", message)
    message = shown_text(message)
    hint = _hint(message, refused)
    if span is None:
        return SqlInvalid(reason=message, hint=hint)
    line, column = line_and_column(text, span[0])
    return SqlInvalid(reason=f"{message}\n\n{drawn(text, span)}", line=line, column=column, hint=hint)


def _hint(message: str, refused: TextRefused) -> str | None:
    """Return advice that fits the message; None leaves the general one."""
    if "syntax error" in message and refused.span is not None:
        # The word itself, or the one before the position where the parser stopped.
        keyword = _KEYWORD_AT_END.search(refused.text[: refused.span[1]])
        if keyword is not None:
            return f'{keyword[1]} is a word of SQL; as the name of a column it is written "{keyword[1]}".'
    missing = _MISSING_COLUMN.search(message)
    if missing is not None:
        if f'"{missing[1]}"' in refused.text:
            return f"Text goes into single quotes: '{missing[1]}'. Double quotes are for names."
        return "DESCRIBE <namespace>.<table>, or lake.<name>, shows the columns of a table."
    return None


def _only_select(cursor: Any, sql: str) -> Any:
    import duckdb

    try:
        statements = cursor.extract_statements(sql)
    except duckdb.Error as error:
        refused = TextRefused.of(error, sql)
        raise sql_invalid(refused, sql, refused.span) from refused
    if not statements:
        raise SqlInvalid(reason="it is empty.", hint="Write a SELECT.")
    if len(statements) > 1:
        raise SqlUnsupported(reason=f"There are {len(statements)} statements; one is run at a time.")
    kind = statements[0].type
    if kind == duckdb.StatementType.MULTI:
        hint = "Name the values: SELECT * FROM (PIVOT … ON column IN (…) USING …)."
        raise SqlUnsupported(reason="A PIVOT that has to look for its values is not supported.", hint=hint)
    if kind != duckdb.StatementType.SELECT:
        raise SqlUnsupported(reason=f"{kind.name} statements are not supported here; SELECT is.")
    return statements[0]


def _count_parameters(names: set[str], params: Sequence[Any]) -> int:
    if not all(name.isdecimal() for name in names):
        raise SqlInvalid(reason="named parameters are not supported.", hint="Write ? or $1, $2, ….")
    count = max((int(name) for name in names), default=0)
    if len(names) != count:
        missing = next(n for n in range(1, count + 1) if str(n) not in names)
        raise SqlInvalid(
            reason=f"it uses ${count} but not ${missing}.", hint="Number parameters from $1 without gaps."
        )
    if count != len(params):
        raise SqlInvalid(
            reason=f"values for its parameters: {count} wanted, {len(params)} given.",
            hint="Give one value for each ? or $n.",
        )
    return count


def _tables(tree: Any) -> tuple[Counter[tuple[str, str]], set[str]]:
    """Return the tables in the tree, counted, and those without a schema; refuse what reads anything else."""
    tables: Counter[tuple[str, str]] = Counter()
    unqualified: set[str] = set()
    from_calls: set[int] = set()
    for node, defined in scoped_nodes(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in QUERY_NODES:
            raise SqlUnsupported(reason=f"{kind.partition('_')[0]} inside a query is not supported here.")
        if kind == "TABLE_FUNCTION":
            check_table_function(str(node["function"].get("function_name", "")))
            from_calls.add(id(node["function"]))
        elif kind == "SHOW_REF" and node.get("query") is None:
            raise SqlUnsupported(reason="SHOW is not supported here.", hint="Use SHOW TABLES alone.")
        elif kind == "BASE_TABLE":
            schema, table = _table_of(node)
            if schema:
                tables[schema, table] += 1
            elif table not in defined or table.startswith(ROWS_PREFIX):
                unqualified.add(table)
        elif "function_name" in node:  # calls, aggregates, operators and windows
            if id(node) not in from_calls:
                check_call(node)
        elif node.get("class") == "COLUMN_REF":
            check_column(node["column_names"])
    return tables, unqualified


def _table_of(node: Node) -> tuple[str, str]:
    """Return schema ('' for none) and name of a table in FROM."""
    path = node.get("qualified_name", {}).get("path", ())
    if node.get("catalog_name") or len(path) > 2:
        catalog = node.get("catalog_name") or path[0]
        hint = "Write <namespace>.<table>, or lake.<name>."
        raise SqlUnsupported(reason=f"'{catalog}' is not a schema here.", hint=hint)
    if node.get("at_clause"):
        raise SqlUnsupported(reason="AT (VERSION …) is not supported: the newest version is read.")
    return str(node.get("schema_name") or "").lower(), str(node["table_name"]).lower()
