"""A statement, checked: one SELECT that reads tables by <schema>.<name> and nothing else.

DuckDB's own parser decides what the text means; this module only walks the tree that it gives. What is not
on a list here is refused, so that a new version of DuckDB cannot open a door by itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.query.mentions import PlainOutputs, mentioned_names, plain_outputs
from tidegate.query.places import Span, TextRefused, drawn
from tidegate.query.scopes import Node, scoped_nodes
from tidegate.query.system_names import rename_system, shown_text
from tidegate.sql.tokens import line_and_column

SQL_CHARS_MAX = 1_000_000  # DuckDB's parser takes some kilobytes for each kilobyte of text

# Table functions that compute rows from their arguments. All others read files, settings or other queries.
TABLE_FUNCTIONS = frozenset(
    {
        "range",
        "generate_series",
        "unnest",
        "repeat",
        "repeat_row",
        "json_each",
        "json_tree",
        "pg_timezone_names",
    }
)
QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
# Names of what a session lends to DuckDB begin so; no statement can name them.
LENT_PREFIX = "tidegate_lent_"
# What waits, tells of the server itself, or runs text that nobody has looked at.
SCALARS_REFUSED = frozenset(
    {
        *("sleep_ms", "pg_sleep", "write_log", "current_setting", "getvariable", "nextval", "setval"),
        *("json_serialize_plan", "json_serialize_sql", "json_deserialize_sql", "json_execute_serialized_sql"),
    }
)

# Names of columns that pipelines like to write and that SQL has for itself.
_KEYWORD_AT_END = re.compile(r'(?<!")\b(offset|user|order|group|end|at)\b(?!")\s*\S*$', re.IGNORECASE)
_MISSING_COLUMN = re.compile(r'Referenced column "([^"]+)"')
# DuckDB looks for names like a wrong one in all sessions.
_NEAR_TABLE = re.compile(r'\nDid you mean "[^\n]*')


@dataclass(frozen=True, slots=True)
class Statement:
    """A checked text, as DuckDB gets it, and what it names; all names are in small letters.

    `tables` counts how often each (schema, table) is named, `strangers` are tables without a schema,
    `mentioned` holds every name that may be a column (None: all columns are meant).
    """

    sql: str
    tables: Counter[tuple[str, str]]
    strangers: frozenset[str]
    parameter_count: int
    mentioned: frozenset[str] | None
    outputs: PlainOutputs | None


def read_statement(cursor: Any, sql: str, params: Sequence[Any]) -> Statement:
    """Check the text and the number of values; SqlInvalid or SqlUnsupported."""
    if len(sql) > SQL_CHARS_MAX:
        raise SqlInvalid(
            reason=f"it is longer than {SQL_CHARS_MAX} characters.", hint="Bind values as parameters."
        )
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise SqlInvalid(reason=f"it is not Unicode text: {error}") from error
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
    tables, strangers = _tables(tree)
    text = rename_system(parsed.query, tree)
    return Statement(text, tables, frozenset(strangers), count, mentioned_names(tree), plain_outputs(tree))


def sql_invalid(refused: TextRefused, text: str, span: Span | None) -> SqlInvalid:
    """Give DuckDB's words, and line and column (from 1) of a place in a text, where there is one."""
    message = refused.words
    if "Table with name" in message:
        message = _NEAR_TABLE.sub("", message)
    message = shown_text(message)
    hint = _hint(message, refused)
    if span is None:
        return SqlInvalid(reason=message, hint=hint)
    line, column = line_and_column(text, span[0])
    return SqlInvalid(reason=f"{message}\n\n{drawn(text, span)}", line=line, column=column, hint=hint)


def _hint(message: str, refused: TextRefused) -> str | None:
    """Give advice that fits the message; None leaves the general one."""
    if "syntax error" in message and refused.span is not None:
        # The word itself, or the one before the place where the parser gave up.
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
        refused = TextRefused(error, sql)
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
    wanted = max((int(name) for name in names), default=0)
    if len(names) != wanted:
        missing = next(n for n in range(1, wanted + 1) if str(n) not in names)
        raise SqlInvalid(
            reason=f"it uses ${wanted} but not ${missing}.", hint="Number parameters from $1 without gaps."
        )
    if wanted != len(params):
        raise SqlInvalid(
            reason=f"values for its parameters: {wanted} wanted, {len(params)} given.",
            hint="Give one value for each ? or $n.",
        )
    return wanted


def _tables(tree: Any) -> tuple[Counter[tuple[str, str]], set[str]]:
    """Count the tables in the tree, list those without a schema, and refuse what reads anything else."""
    tables: Counter[tuple[str, str]] = Counter()
    strangers: set[str] = set()
    for node, defined in scoped_nodes(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in QUERY_NODES:
            raise SqlUnsupported(reason=f"{kind.partition('_')[0]} inside a query is not supported here.")
        if kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                hint = "Read tables: FROM <namespace>.<table>, or FROM lake.<name>."
                raise SqlUnsupported(reason=f"The table function {name}() is not available here.", hint=hint)
        elif kind == "SHOW_REF" and node.get("query") is None:
            raise SqlUnsupported(reason="SHOW is not supported here.", hint="SHOW TABLES stands alone.")
        elif kind == "BASE_TABLE":
            schema, table = _table_of(node)
            if schema:
                tables[schema, table] += 1
            elif table not in defined or table.startswith(LENT_PREFIX):
                strangers.add(table)
        elif node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in SCALARS_REFUSED:
            raise SqlUnsupported(reason=f"The function {node['function_name']}() is not available here.")
    return tables, strangers


def _table_of(node: Node) -> tuple[str, str]:
    """Give schema ('' for none) and name of a table in FROM."""
    path = node.get("qualified_name", {}).get("path", ())
    if node.get("catalog_name") or len(path) > 2:
        catalog = node.get("catalog_name") or path[0]
        hint = "Write <namespace>.<table>, or lake.<name>."
        raise SqlUnsupported(reason=f"'{catalog}' is not a schema here.", hint=hint)
    if node.get("at_clause"):
        raise SqlUnsupported(reason="AT (VERSION …) is not supported: the newest version is read.")
    return str(node.get("schema_name") or "").lower(), str(node["table_name"]).lower()
