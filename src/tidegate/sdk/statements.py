"""Statements on the wire: takes SQL, parameters and rows, gives requests, keeps nothing.

What a statement does, by its words: takes its text, says whether it only reads. Pure.

A statement that only reads may be sent twice. In doubt it writes: then it is sent once, and nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any
from urllib.parse import urlencode

from tidegate.errors import RequestInvalid
from tidegate.sdk.requests import API, ARROW_STREAM, Request, encoded, noted

PATH = f"{API}/sql"
SCRIPT_HINT = "The results of the answer have what each statement gave; ask for one SELECT by itself."
# What the server allows a statement unless it is set otherwise; a script is waited for an hour at most.
STATEMENT_SECONDS = 60.0
SCRIPT_SECONDS_MAX = 3600.0
_TABLE = re.compile(r"(\w+)\.(\w+)", re.ASCII)


def question(sql: str, params: Iterable[Any] | None, key: str | None = None) -> Request:
    """Return the request that runs statements; it may be sent twice when they only read, or have a key."""
    content = encoded({"sql": sql, "params": bound(params)})
    # Each statement of a script may take its time. A semicolon in a text only makes the wait longer.
    wait_seconds = min(sql.rstrip("; \n").count(";") * STATEMENT_SECONDS, SCRIPT_SECONDS_MAX)
    repeatable = only_reads(sql)
    return Request("POST", PATH, content, key=key, repeatable=repeatable, wait_seconds=wait_seconds)


def arrow_question(sql: str, params: Iterable[Any] | None) -> Request:
    """Return the request for a statement whose rows are wanted as Arrow; one that may write is refused."""
    if is_script(sql):
        raise noted(RequestInvalid(reason="Arrow is for the rows of one statement.", hint=SCRIPT_HINT))
    if not gives_rows(sql):
        reason = "Arrow is for statements that give rows, and this one may write; it was not run."
        raise noted(RequestInvalid(reason=reason, hint="Run it with sql()."))
    return question(sql, params)


def bound(params: object) -> list[Any]:
    """Return parameters as a list; what has no order, or is one value, is refused."""
    if params is None:
        return []
    if isinstance(params, str | bytes):
        told, instead = "one text", f"[{params!r}]"
    elif isinstance(params, Mapping):
        told, instead = "a dictionary", "the values in the order of their ?, as in [1, 'a'],"
    elif isinstance(params, Set):
        told, instead = "a set", "the values in the order of their ?, as in [1, 'a'],"
    elif not isinstance(params, Iterable):
        told, instead = "one value", f"[{params!r}]"
    else:
        return list(params)
    hint = f"Write {instead} in its place."
    raise noted(RequestInvalid(reason=f"Parameters are a list, not {told}.", hint=hint))


def insertion(table: str, rows: object, *, upsert: bool, key: str | None) -> Request | None:
    """Return the request that writes rows, as Arrow; None where there are none, and no columns either."""
    from tidegate.sdk.arrow import rows_of, stream_bytes

    named = _TABLE.fullmatch(table)
    if named is None:
        reason = f"'{table}' is not the name of a table."
        raise RequestInvalid(reason=reason, hint="Write it like chat.messages, with its namespace.")
    verb = "UPSERT" if upsert else "INSERT"
    # Quoted, so that a name that is a word of SQL is a name all the same.
    sql = f'{verb} INTO "{named[1].lower()}"."{named[2].lower()}"'
    found = rows_of(rows)
    if not found.num_columns:
        return None
    query = urlencode({"sql": sql})
    return Request("POST", f"{PATH}?{query}", stream_bytes(found), content_type=ARROW_STREAM, key=key)


# What a semicolon or a word may hide in: '…' and "…" (a doubled quote stays inside), E'…' (so does \'),
# $tag$…$tag$, -- to the line's end, /* … */. Then words, parameters, runs of blanks, and single characters.
PIECES = re.compile(
    r"""(?P<quote>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
        | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag))
    | (?P<comment>--[^\n]* | /\*.*?\*/ | \s+)
    | (?P<open>[eE]' | '|"|/\*|\$(?:[A-Za-z_]\w*)?\$)
    | (?P<word>\w+)
    | (?P<mark>\$\d* | .)""",
    re.VERBOSE | re.DOTALL,
)
READING = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
READING |= {"SUMMARIZE"}
WRITING = frozenset({"INSERT", "UPSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "ALTER", "DROP", "EXECUTE"})


def only_reads(sql: str) -> bool:
    """Return whether every statement of a text certainly changes nothing."""
    first = True
    for kind, text in pieces(sql):
        if kind == "open":
            return False
        if kind == "word":
            word = text.upper()
            if word in WRITING or (first and word not in READING):
                return False
            first = False
        elif text == ";":
            first = True
        elif first and text != "(":
            return False
    return True


def gives_rows(sql: str) -> bool:
    """Return whether a text is one statement that answers rows and changes nothing, by how it begins."""
    if is_script(sql):
        return False
    word = first_word(sql)
    if word == "EXECUTE":  # AS 'user' (statement)
        return first_word(sql[sql.find("(") :]) in READING and "(" in sql
    # Behind WITH an INSERT may follow; the others have their verb in front, and nothing of theirs writes.
    return word in READING and (word != "WITH" or only_reads(sql))


def is_script(sql: str) -> bool:
    """Return whether there is anything behind the first semicolon."""
    ended = False
    for _, text in pieces(sql) if ";" in sql else ():
        if text == ";":
            ended = True
        elif ended:
            return True
    return False


def first_word(sql: str) -> str:
    """Return the word that a statement begins with, in capitals; nothing where it begins with none."""
    for kind, text in pieces(sql):
        if kind == "word":
            return text.upper()
        if text != "(":
            break
    return ""


def pieces(sql: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a text that are no blanks and no comments, each with its kind."""
    for match in PIECES.finditer(sql):
        kind = match.lastgroup or "mark"
        if kind == "tag":
            kind = "quote"
        if kind != "comment":
            yield kind, match.group()
