"""INSERT, UPSERT, UPDATE and DELETE: takes a cursor behind the first word, gives what is to be written."""

from __future__ import annotations

from tidegate.model.names import shorten
from tidegate.model.schemas import COLUMNS_MAX
from tidegate.sql.cursor import Cursor
from tidegate.sql.fragments import expression, where
from tidegate.sql.select import QUERY_STARTS, select
from tidegate.sql.statements import Delete, Fragment, Insert, Update
from tidegate.sql.values import values

INSERT_SYNTAX = (
    "Syntax: INSERT|UPSERT INTO namespace.table [(column, …)] VALUES (value, …), …, "
    "or INSERT|UPSERT INTO namespace.table [(column, …)] SELECT …"
)
UPDATE_SYNTAX = "Syntax: UPDATE namespace.table SET column = value, … [WHERE condition]"
DELETE_SYNTAX = "Syntax: DELETE FROM namespace.table [WHERE condition]"

_NO_RETURNING = "RETURNING is not supported: the answer is the number of rows."


def insert(cursor: Cursor, *, upsert: bool) -> Insert:
    """Read what follows INSERT or UPSERT."""
    cursor.syntax = INSERT_SYNTAX
    if cursor.is_at("OR"):
        raise cursor.unsupported("INSERT OR … is not supported.", "UPSERT INTO … writes a row in any case.")
    cursor.expect("INTO")
    table = cursor.table()
    columns: tuple[str, ...] | None = None
    if cursor.is_at("(") and not _is_query_ahead(cursor):
        columns = cursor.names("a column", limit=COLUMNS_MAX)
    rows, fragments, query = None, None, None
    if cursor.take("VALUES", "VALUE"):
        rows, fragments = values(cursor, None if columns is None else len(columns))
    elif cursor.is_at("DEFAULT"):
        hint = "Name a column that has a default: INSERT INTO … (id) VALUES (DEFAULT)."
        raise cursor.unsupported("DEFAULT VALUES is not supported.", hint)
    elif cursor.is_at("(") and not _is_query_ahead(cursor):
        raise cursor.expected(["VALUES", "SELECT"])
    elif cursor.is_at(*QUERY_STARTS):
        query = select(cursor, {"RETURNING"}).query
    if cursor.is_at("ON"):
        raise cursor.unsupported("ON CONFLICT is not supported.", "UPSERT INTO … writes a row in any case.")
    _refuse_returning(cursor)
    if rows is None and fragments is None and query is None and not (cursor.is_at_end or cursor.is_at(")")):
        raise cursor.expected(["VALUES", "SELECT"] if columns else ["VALUES", "SELECT", "("])
    return Insert(table, columns, rows, fragments, query, upsert)


def _is_query_ahead(cursor: Cursor) -> bool:
    """Tell whether the parenthesis here holds a query, and not names of columns."""
    return cursor.after().key in QUERY_STARTS


def update(cursor: Cursor) -> Update:
    """Read what follows UPDATE."""
    cursor.syntax = UPDATE_SYNTAX
    table = cursor.table()
    cursor.expect("SET")
    assignments: dict[str, Fragment] = {}
    while True:
        position = cursor.token.start
        column = cursor.name("a column")
        if column in assignments:
            raise cursor.error(f"column '{shorten(column)}' is set twice", position)
        cursor.expect("=")
        if cursor.is_at("DEFAULT"):
            raise cursor.unsupported("SET column = DEFAULT is not supported.", "Write the value.")
        assignments[column] = expression(cursor, "a value", {",", "WHERE", "RETURNING"})
        if not cursor.take(","):
            break
    condition = where(cursor, {"RETURNING"})
    _refuse_returning(cursor)
    return Update(table, tuple(assignments.items()), condition)


def delete(cursor: Cursor) -> Delete:
    """Read what follows DELETE."""
    cursor.syntax = DELETE_SYNTAX
    cursor.expect("FROM")
    table = cursor.table()
    if cursor.is_at("USING"):
        hint = "Name the keys with a subquery: WHERE id IN (SELECT …)."
        raise cursor.unsupported("DELETE … USING is not supported.", hint)
    condition = where(cursor, {"RETURNING"})
    _refuse_returning(cursor)
    return Delete(table, condition)


def _refuse_returning(cursor: Cursor) -> None:
    if cursor.is_at("RETURNING"):
        raise cursor.unsupported(_NO_RETURNING, "SELECT the rows afterwards.")
