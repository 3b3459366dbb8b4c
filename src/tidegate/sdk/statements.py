"""The requests of SQL statements, and what a statement does by its words.

A statement that only reads may be sent twice. In doubt it writes: then it is sent once, and nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any
from urllib.parse import urlencode

from tidegate.errors import RequestInvalid
from tidegate.sdk.requests import API, ARROW_STREAM, Request, encoded, with_hint
from tidegate.sql.parser.lexer import OPEN, WORD, tokens_of

PATH = f"{API}/sql"
SCRIPT_HINT = "The results of the answer have what each statement gave; ask for one SELECT by itself."
# What the server allows a statement by default; a script is waited for an hour at most.
STATEMENT_SECONDS = 60.0
SCRIPT_SECONDS_MAX = 3600.0
_TABLE = re.compile(r"(\w+)\.(\w+)", re.ASCII)


def sql_request(sql: str, params: Iterable[Any] | None, key: str | None = None) -> Request:
    """Return the request that runs statements; it may be sent twice when they only read, or with a key."""
    content = encoded({"sql": sql, "params": parameter_list(params)})
    # Each statement of a script has its own time limit. A semicolon in a string only makes the wait longer.
    wait_seconds = min(sql.rstrip("; \n").count(";") * STATEMENT_SECONDS, SCRIPT_SECONDS_MAX)
    repeatable = only_reads(sql)
    return Request("POST", PATH, content, key=key, repeatable=repeatable, wait_seconds=wait_seconds)


def arrow_request(sql: str, params: Iterable[Any] | None) -> Request:
    """Return the request of a statement whose rows come back as Arrow; one that may write is refused."""
    if is_script(sql):
        raise with_hint(RequestInvalid(reason="Arrow is for the rows of one statement.", hint=SCRIPT_HINT))
    if not returns_rows(sql):
        reason = "Arrow is for statements that give rows, and this one may write; it was not run."
        raise with_hint(RequestInvalid(reason=reason, hint="Run it with sql()."))
    return sql_request(sql, params)


def parameter_list(params: object) -> list[Any]:
    """Return parameters as a list; a single value, and a collection without an order, are refused."""
    if params is None:
        return []
    if isinstance(params, str | bytes):
        passed, instead = "one text", f"[{params!r}]"
    elif isinstance(params, Mapping):
        passed, instead = "a dictionary", "the values in the order of their ?, as in [1, 'a'],"
    elif isinstance(params, Set):
        passed, instead = "a set", "the values in the order of their ?, as in [1, 'a'],"
    elif not isinstance(params, Iterable):
        passed, instead = "one value", f"[{params!r}]"
    else:
        return list(params)
    hint = f"Write {instead} in its place."
    raise with_hint(RequestInvalid(reason=f"Parameters are a list, not {passed}.", hint=hint))


def insert_request(table: str, rows: object, *, upsert: bool, key: str | None) -> Request | None:
    """Return the request that writes rows, as Arrow; None where there are neither rows nor columns."""
    from tidegate.sdk.arrow import rows_of, stream_bytes

    name = _TABLE.fullmatch(table)
    if name is None:
        reason = f"'{table}' is not the name of a table."
        raise RequestInvalid(reason=reason, hint="Write it like chat.messages, with its namespace.")
    verb = "UPSERT" if upsert else "INSERT"
    # Quoted, so that a keyword of SQL is a name all the same.
    sql = f'{verb} INTO "{name[1].lower()}"."{name[2].lower()}"'
    content = rows_of(rows)
    if not content.num_columns:
        return None
    query = urlencode({"sql": sql})
    return Request("POST", f"{PATH}?{query}", stream_bytes(content), content_type=ARROW_STREAM, key=key)


READING = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
READING |= {"SUMMARIZE"}
WRITING = frozenset({"INSERT", "UPSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "ALTER", "DROP", "EXECUTE"})


def only_reads(sql: str) -> bool:
    """True if every statement of a text certainly changes nothing."""
    first = True
    for token in tokens_of(sql):
        if token.kind == OPEN:
            return False
        if token.kind == WORD:
            if token.key in WRITING or (first and token.key not in READING):
                return False
            first = False
        elif token.key == ";":
            first = True
        elif first and token.key != "(":
            return False
    return True


def returns_rows(sql: str) -> bool:
    """True if a text is one statement that returns rows and changes nothing, by how it begins."""
    if is_script(sql):
        return False
    word = first_word(sql)
    if word == "EXECUTE":  # AS 'user' (statement)
        inner = next((token.start for token in tokens_of(sql) if token.key == "("), len(sql))
        return first_word(sql[inner:]) in READING
    # An INSERT may follow a WITH; the other statements begin with their verb, and write nothing elsewhere.
    return word in READING and (word != "WITH" or only_reads(sql))


def is_script(sql: str) -> bool:
    """True if there is anything after the first semicolon."""
    ended = False
    for token in tokens_of(sql) if ";" in sql else ():
        if token.key == ";":
            ended = True
        elif ended:
            return True
    return False


def first_word(sql: str) -> str:
    """Return the word that a statement begins with, in capitals; nothing where it begins with none."""
    for token in tokens_of(sql):
        if token.kind == WORD:
            return token.key
        if token.key != "(":
            break
    return ""
