"""The parser of SQL scripts: recursive descent with one token of lookahead.

The first word of a statement decides which module parses it: `ddl` (CREATE, ALTER, DROP), `dml` (INSERT,
UPSERT, UPDATE, DELETE), `topics`, `messages` (PUBLISH, CONSUME, ACK …) or `select`. Every error says what was
expected and what was found, in which line, column and statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from tidegate.sql.parser.cursor import TokenCursor, one_of
from tidegate.sql.parser.ddl import alter, create, drop
from tidegate.sql.parser.dml import delete, insert, update
from tidegate.sql.parser.lexer import END, TEXT_CHARS_MAX, SourceText
from tidegate.sql.parser.messages import ack, consume, extend, nack, publish
from tidegate.sql.parser.select import select
from tidegate.sql.parser.topics import clear_topic, describe_topic, reset_group, show_groups
from tidegate.sql.statements import (
    DescribeTable,
    ExecuteAs,
    Explain,
    ShowNamespaces,
    ShowTables,
    ShowTopics,
    Statement,
)

STATEMENTS_MAX = 1_000  # of a script: it is one call, and its answer holds an answer for each

EXECUTE_SYNTAX = "Syntax: EXECUTE AS 'user' (SELECT …), or another statement in the parentheses"
SHOW_SYNTAX = (
    "Syntax: SHOW TABLES [IN namespace], SHOW NAMESPACES, SHOW TOPICS, or SHOW CONSUMER GROUPS ON topic"
)
DESCRIBE_SYNTAX = "Syntax: DESCRIBE [TABLE] namespace.table, or DESCRIBE TOPIC topic"

# What DuckDB reads as a query; the last ones only at the beginning of a statement.
_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "SUMMARIZE", "PIVOT", "UNPIVOT", "(")
_WRITES = ("INSERT", "UPSERT", "UPDATE", "DELETE")
_EXPLAINED = ("SELECT", "UPDATE", "DELETE")
_TAKEN_AS_USER = ("SELECT", "INSERT", "UPSERT", "UPDATE", "DELETE", "EXPLAIN")
_OF_MESSAGES = ("CONSUME", "ACK", "NACK", "EXTEND", "PUBLISH", "CLEAR", "RESET")

_ONE_EACH = "Every statement is a transaction by itself: all of it is done, or nothing."
_FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT"), _ONE_EACH),
    "TRUNCATE": "DELETE FROM namespace.table removes all rows.",
    "REPLACE": "UPSERT INTO … writes a row whether it is there or not.",
    "MERGE": "UPSERT INTO … SELECT … writes rows whether they are there or not.",
    **dict.fromkeys(("GRANT", "REVOKE"), "Users have roles: see 'tidegate user'."),
    **dict.fromkeys(("COPY", "EXPORT", "IMPORT"), "Rows come in and go out as JSON or as Arrow."),
    **dict.fromkeys(
        (
            "ATTACH",
            "DETACH",
            "USE",
            "SET",
            "RESET",
            "PRAGMA",
            "INSTALL",
            "LOAD",
            "CALL",
            "CHECKPOINT",
            "VACUUM",
        ),
        "The database behind the tables is not reached by statements.",
    ),
    **dict.fromkeys(("PREPARE", "DEALLOCATE"), "Statements with parameters are kept ready by themselves."),
}


def parse(text: str) -> tuple[Statement, ...]:
    """Return the statements of a text, separated by semicolons; nothing for a text of spaces and comments.

    SqlInvalid or SqlUnsupported carry `line`, `column` (both from 1) and `statement`. Statements before the
    wrong one are not returned.
    """
    _check_text(text)
    cursor = TokenCursor(text)
    found: list[Statement] = []
    while True:
        cursor.begin_statement(len(found) + 1)
        while cursor.is_at(";"):
            cursor.advance()
        if cursor.token.kind == END:
            return tuple(found)
        if len(found) == STATEMENTS_MAX:
            reason = f"there are more than {STATEMENTS_MAX} statements"
            raise cursor.error(reason, cursor.token.start, "Send them in several calls.")
        statement = _statement(cursor)
        if not cursor.is_at_end:
            raise cursor.expected("the end of the statement")
        found.append(_counted(statement, cursor.parameter_count()))


def _check_text(text: str) -> None:
    if len(text) > TEXT_CHARS_MAX:
        hint = "Bind values as parameters, or send rows as Arrow."
        raise SourceText(text, 1).error(f"the text is longer than {TEXT_CHARS_MAX} characters", 0, hint)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = "the text has a character that is not Unicode text"
        raise SourceText(text, 1).error(reason, error.start, "Half a surrogate pair is none.") from error


def _counted(statement: Statement, count: int) -> Statement:
    """Return the statement, and those in it, with the number of its parameters."""
    if not count:
        return statement
    if isinstance(statement, Explain | ExecuteAs):
        statement = replace(statement, statement=_counted(statement.statement, count))
    return replace(statement, parameter_count=count)


def _statement(cursor: TokenCursor) -> Statement:
    """Parse one statement, up to the first token that does not belong to it."""
    token = cursor.token
    read = _READERS.get(token.key)
    if read is None:
        raise _unknown(cursor)
    if read is _describe and cursor.after().key in ("SELECT", "WITH", "FROM", "VALUES", "("):
        read = select  # DuckDB describes queries
    if token.key == "RESET" and cursor.after().key != "CONSUMER":
        raise _unknown(cursor)
    if read is not select:
        cursor.advance()
    statement = read(cursor)
    return replace(statement, position=token.start, text=cursor.text[token.start : cursor.last_stop])


def _unknown(cursor: TokenCursor) -> Exception:
    """Return the error for a word that begins no statement, the nearest ones first."""
    word = cursor.token.key
    if word in _FOREIGN:
        return cursor.unsupported(f"{word} is not supported.", _FOREIGN[word])
    known = [key for key in _READERS if key.isalpha()]
    near = get_close_matches(word, known, n=3, cutoff=0.5)
    listed = [*near, *(key for key in known if key not in near)]
    hint = f"Statements begin with {one_of(listed)}."
    if near:
        hint = f"Did you mean {near[0]}? {hint}"
    return cursor.expected("a statement", hint=hint)


def _show(cursor: TokenCursor) -> Statement:
    cursor.syntax = SHOW_SYNTAX
    word = cursor.expect("TABLES", "NAMESPACES", "TOPICS", "CONSUMER")
    if word == "NAMESPACES":
        return ShowNamespaces()
    if word == "TOPICS":
        return ShowTopics()
    if word == "CONSUMER":
        return show_groups(cursor)
    if cursor.take("IN", "FROM"):
        return ShowTables(cursor.name("the name of a namespace"))
    return ShowTables(None)


def _describe(cursor: TokenCursor) -> Statement:
    cursor.syntax = DESCRIBE_SYNTAX
    if cursor.is_at("TOPIC") and cursor.after().key != ".":  # a namespace may have the name
        cursor.advance()
        return describe_topic(cursor)
    cursor.take("TABLE")
    return DescribeTable(cursor.table())


def _explain(cursor: TokenCursor) -> Statement:
    if cursor.is_at("ANALYZE", "ANALYSE"):
        hint = "EXPLAIN shows what is read from each table; the answer of a query has its time."
        raise cursor.unsupported("EXPLAIN ANALYZE is not supported.", hint)
    if not cursor.is_at(*_QUERIES, *_EXPLAINED):
        raise cursor.expected(_EXPLAINED, hint="EXPLAIN shows what a statement reads of each table.")
    return Explain(_statement(cursor))


def _execute(cursor: TokenCursor) -> Statement:
    cursor.syntax = EXECUTE_SYNTAX
    cursor.expect("AS")
    user = cursor.text_value("a user's name in quotes")
    cursor.expect("(")
    if cursor.is_at(*_OF_MESSAGES):
        hint = "Topics belong to the tenant, and to no user. For a group, MEMBER says who it is."
        raise cursor.unsupported(f"{cursor.token.key} is not run as another user.", hint)
    if not cursor.is_at(*_QUERIES, *_TAKEN_AS_USER):
        raise cursor.expected(_TAKEN_AS_USER)
    statement = _statement(cursor)
    cursor.syntax = EXECUTE_SYNTAX
    cursor.expect(")")
    return ExecuteAs(user, statement)


_READERS: Mapping[str, Callable[[TokenCursor], Statement]] = {
    "SELECT": select,
    "INSERT": lambda cursor: insert(cursor, upsert=False),
    "UPSERT": lambda cursor: insert(cursor, upsert=True),
    "UPDATE": update,
    "DELETE": delete,
    "CREATE": create,
    "ALTER": alter,
    "DROP": drop,
    "SHOW": _show,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "EXPLAIN": _explain,
    "EXECUTE": _execute,
    "PUBLISH": publish,
    "CONSUME": consume,
    "ACK": ack,
    "NACK": nack,
    "EXTEND": extend,
    "CLEAR": clear_topic,
    "RESET": reset_group,
    **dict.fromkeys(_QUERIES[1:], select),
}
