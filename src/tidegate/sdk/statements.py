"""Statements on the wire: takes SQL, parameters and rows, gives requests, keeps nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any
from urllib.parse import urlencode

from tidegate.errors import RequestInvalid
from tidegate.sdk.reading import gives_rows, is_script, only_reads
from tidegate.sdk.requests import API, ARROW_STREAM, Request, encoded, noted

PATH = f"{API}/sql"
SCRIPT_HINT = "The results of the answer have what each statement gave; ask for one SELECT by itself."
# What the server allows a statement unless it is set otherwise; a script is waited for an hour at most.
STATEMENT_SECONDS = 60.0
SCRIPT_SECONDS_MAX = 3600.0
_TABLE = re.compile(r"(\w+)\.(\w+)", re.ASCII)


def question(sql: str, params: Iterable[Any] | None, key: str | None = None) -> Request:
    """Give the request that runs statements; it may be sent twice when they only read, or have a key."""
    content = encoded({"sql": sql, "params": bound(params)})
    # Each statement of a script may take its time. A semicolon in a text only makes the wait longer.
    wait_seconds = min(sql.rstrip("; \n").count(";") * STATEMENT_SECONDS, SCRIPT_SECONDS_MAX)
    repeatable = only_reads(sql)
    return Request("POST", PATH, content, key=key, repeatable=repeatable, wait_seconds=wait_seconds)


def arrow_question(sql: str, params: Iterable[Any] | None) -> Request:
    """Give the request for a statement whose rows are wanted as Arrow; one that may write is refused."""
    if is_script(sql):
        raise noted(RequestInvalid(reason="Arrow is for the rows of one statement.", hint=SCRIPT_HINT))
    if not gives_rows(sql):
        reason = "Arrow is for statements that give rows, and this one may write; it was not run."
        raise noted(RequestInvalid(reason=reason, hint="Run it with sql()."))
    return question(sql, params)


def bound(params: object) -> list[Any]:
    """Give parameters as a list; what has no order, or is one value, is refused."""
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
    """Give the request that writes rows, as Arrow; None where there are none, and no columns either."""
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
