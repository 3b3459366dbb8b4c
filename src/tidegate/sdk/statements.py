"""Statements on the wire: takes SQL, parameters and rows, gives requests, keeps nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from tidegate.errors import RequestInvalid
from tidegate.sdk.reading import only_reads
from tidegate.sdk.requests import API, ARROW_STREAM, Request, encoded

PATH = f"{API}/sql"
_TABLE = re.compile(r"(\w+)\.(\w+)", re.ASCII)


def question(sql: str, params: Sequence[Any] | None, key: str | None = None) -> Request:
    """Give the request that runs statements; it may be sent twice when they only read, or have a key."""
    if isinstance(params, str | bytes):
        raise RequestInvalid(
            reason="Parameters are a list, not one text.", hint=f"Write [{params!r}] in its place."
        )
    body = {"sql": sql, "params": list(params) if params is not None else []}
    return Request("POST", PATH, encoded(body), key=key, repeatable=only_reads(sql))


def insertion(table: str, rows: object, *, upsert: bool, key: str | None) -> Request:
    """Give the request that writes rows, as Arrow."""
    from tidegate.sdk.arrow import rows_of, stream_bytes

    named = _TABLE.fullmatch(table)
    if named is None:
        reason = f"'{table}' is not the name of a table."
        raise RequestInvalid(reason=reason, hint="Write it like chat.messages, with its namespace.")
    verb = "UPSERT" if upsert else "INSERT"
    # Quoted, so that a name that is a word of SQL is a name all the same.
    sql = f'{verb} INTO "{named[1].lower()}"."{named[2].lower()}"'
    content = stream_bytes(rows_of(rows))
    query = urlencode({"sql": sql})
    return Request("POST", f"{PATH}?{query}", content, content_type=ARROW_STREAM, key=key)
