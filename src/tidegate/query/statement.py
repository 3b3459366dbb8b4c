"""A statement, checked: one SELECT that reads lake tables and nothing else.

DuckDB's own parser decides what the text means; this module only walks the tree that it gives. What is not
on a list here is refused, so that a new version of DuckDB cannot open a door by itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import SqlInvalid, SqlUnsupported

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
SCALARS_REFUSED = frozenset({"sleep_ms", "write_log", "current_setting", "getvariable", "nextval", "setval"})

# Names of columns that pipelines like to write and that SQL has for itself.
_KEYWORD = re.compile(r'(?<!")\b(offset|user|order|group|end)\b(?!")', re.IGNORECASE)
_LINE = re.compile(r"^LINE (\d+): (.*)\n( *)\^", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """The text, how often it names each lake table (in lower case), other tables, and its values' count."""

    sql: str
    tables: Counter[str]
    strangers: frozenset[str]
    parameter_count: int


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
    tree = json.loads(
        cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [parsed.query]).fetchall()[0][0]
    )
    if tree["error"]:
        raise SqlUnsupported(reason=f"This statement is not supported: {tree['error_message']}")
    tables, strangers = _tables(tree)
    return Statement(parsed.query, tables, frozenset(strangers), count)


def sql_invalid(error: Exception, sql: str) -> SqlInvalid:
    """Give DuckDB's message, and line and column (from 1) where it names a place in the text."""
    message = str(error)
    values: dict[str, Any] = {"reason": message}
    place = _LINE.search(message)
    if place is not None:
        values["line"] = int(place[1])
        column = _column(place, sql)
        if column is not None:
            values["column"] = column
    return SqlInvalid(**values, hint=_hint(message, sql))


def _hint(message: str, sql: str) -> str | None:
    """Give advice that fits the message; None leaves the general one about table names."""
    keyword = _KEYWORD.search(sql)
    if "syntax error" in message and keyword is not None:
        return f'{keyword[1]} is a word of SQL; as the name of a column it is written "{keyword[1]}".'
    if "Referenced column" in message:
        return "DESCRIBE lake.<name> shows the columns of a table."
    return None


def _only_select(cursor: Any, sql: str) -> Any:
    import duckdb

    try:
        statements = cursor.extract_statements(sql)
    except duckdb.Error as error:
        raise sql_invalid(error, sql) from error
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


def _tables(tree: Any) -> tuple[Counter[str], set[str]]:
    """Count the lake tables in the tree, list other tables, and refuse what reads anything else."""
    tables: Counter[str] = Counter()
    strangers: set[str] = set()
    defined: set[str] = set()
    for node in _nodes(tree):
        defined.update(str(entry["key"]).lower() for entry in node.get("cte_map", {}).get("map", ()))
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in QUERY_NODES:
            raise SqlUnsupported(reason=f"{kind.partition('_')[0]} inside a query is not supported here.")
        if kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                hint = "Read tables of the lake: FROM lake.<name>."
                raise SqlUnsupported(reason=f"The table function {name}() is not available here.", hint=hint)
        elif kind == "SHOW_REF" and node.get("query") is None:
            raise SqlUnsupported(
                reason="SHOW is not supported here.", hint="'tidegate status' lists the tables."
            )
        elif kind == "BASE_TABLE":
            _note_table(node, tables, strangers)
        elif node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in SCALARS_REFUSED:
            raise SqlUnsupported(reason=f"The function {node['function_name']}() is not available here.")
    return tables, strangers - defined


def _note_table(node: dict[str, Any], tables: Counter[str], strangers: set[str]) -> None:
    if node.get("catalog_name"):
        raise SqlUnsupported(
            reason=f"'{node['catalog_name']}' is not a schema here.", hint="Write lake.<name>."
        )
    if node.get("at_clause"):
        raise SqlUnsupported(reason="AT (VERSION …) is not supported: the newest version is read.")
    schema, table = str(node.get("schema_name") or ""), str(node["table_name"])
    if schema.lower() == "lake":
        tables[table.lower()] += 1
    else:
        strangers.add(f"{schema}.{table}".lower() if schema else table.lower())


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Give every node; a stack instead of calls, since statements nest deeper than Python does."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _column(place: re.Match[str], sql: str) -> int | None:
    """Find the column; DuckDB shows a window of a long line, between dots."""
    lines = sql.split("\n")
    number, shown = int(place[1]), place[2]
    if number > len(lines):
        return None
    caret = len(place[3]) - len(f"LINE {number}: ")
    cut = 3 if shown.startswith("...") else 0
    start = lines[number - 1].find(shown[cut:].removesuffix("..."))
    return None if start < 0 or caret < cut else start + caret - cut + 1
