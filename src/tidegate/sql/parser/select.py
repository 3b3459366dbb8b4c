"""The frame of a SELECT: its SQL for DuckDB, its LAST, its point read, and the tables that it names.

DuckDB decides what a SELECT means. The parser recognises only what Tidegate adds or can do faster: LAST n at
the end of a query or of one in parentheses, a read of plain columns by equality, and the tables that are
named. `last` may also be a column, an alias or a function: only LAST before a number or a parameter, at the
end of a query, is the keyword.

The tables behind FROM and JOIN are a guess, because nothing is bound here: good enough to find out early what
is read, not to decide what a caller may read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.sql.parser.cursor import RESERVED, TokenCursor
from tidegate.sql.parser.fragments import collect, column_of, equalities, simple_of, sql_of
from tidegate.sql.parser.lexer import NUMBER, PARAM, QUOTED, WORD, SqlToken, name_of
from tidegate.sql.parser.limits import check_query
from tidegate.sql.statements import Fragment, Literal, Point, Select, Simple, TableName

LAST_MAX = 2**63 - 1  # the largest LIMIT of DuckDB
LAST_SQL = 'ORDER BY "_time" DESC, "_seq" DESC LIMIT'
QUERY_STARTS = ("SELECT", "WITH", "FROM", "TABLE", "VALUES", "(")

_LAST_HINT = (
    "Put the part with LAST into parentheses: SELECT … FROM (SELECT * FROM namespace.table LAST 100) …"
)
_IN_WORDS = {"GROUP": "GROUP BY", "ORDER": "ORDER BY"}
_NOT_WITH_LAST = frozenset(
    {
        "GROUP",
        "DISTINCT",
        "ORDER",
        "LIMIT",
        "OFFSET",
        "FETCH",
        "UNION",
        "INTERSECT",
        "EXCEPT",
        "HAVING",
        "QUALIFY",
    }
)
_AGGREGATES = frozenset(
    {"COUNT", "SUM", "AVG", "MIN", "MAX", "FIRST", "LAST", "LIST", "ANY_VALUE", "ARRAY_AGG", "STRING_AGG"}
    | {
        "ARG_MIN",
        "ARG_MAX",
        "MIN_BY",
        "MAX_BY",
        "MEDIAN",
        "MODE",
        "STDDEV",
        "VARIANCE",
        "BOOL_AND",
        "BOOL_OR",
    }
    | {"APPROX_COUNT_DISTINCT", "QUANTILE", "QUANTILE_CONT", "GROUP_CONCAT", "COUNT_STAR", "HISTOGRAM"}
)
# Functions of one row. Behind any other, more rows than n may have to be read for LAST n.
_SCALARS = frozenset(
    {
        "ABS",
        "CAST",
        "TRY_CAST",
        "CEIL",
        "COALESCE",
        "CONCAT",
        "DATE_TRUNC",
        "EPOCH",
        "EPOCH_MS",
        "FLOOR",
        "HASH",
    }
    | {"JSON_EXTRACT", "JSON_EXTRACT_STRING", "LEFT", "LENGTH", "LOWER", "LPAD", "LTRIM", "MD5", "NULLIF"}
    | {"REPLACE", "RIGHT", "ROUND", "RPAD", "RTRIM", "STRFTIME", "SUBSTR", "SUBSTRING", "TRIM", "UPPER"}
)


def select(cursor: TokenCursor, stops: Collection[str] = ()) -> Select:
    """Parse a query up to the end of the statement, or to a stop outside of parentheses."""
    tokens = collect(cursor, stops)
    if not tokens:
        raise cursor.expected("a SELECT")
    check_query(cursor, tokens)
    levels = _levels(tokens)
    edits: dict[int, str] = {}
    last: Simple | None = None
    for level in levels:
        _refuse_early_last(cursor, tokens, level)
        if _is_last(tokens, level):
            _check_last(cursor, tokens, level)
            edits[level[-2]] = LAST_SQL
            if level is levels[-1]:
                last = _count_of(cursor, tokens[level[-1]])
    sql, params = sql_of(cursor.text, tokens, edits)
    frame = tokens if last is None else tokens[:-2]
    return Select(
        query=Fragment(sql, params, None, tokens[0].start),
        last=last,
        last_alone=last is not None and _is_alone(frame),
        point=_point(cursor, frame, has_last=last is not None),
        tables=named_tables(cursor, tokens),
    )


def _levels(tokens: Sequence[SqlToken]) -> list[list[int]]:
    """Return the token positions of every query by itself, inner ones first, the outermost last.

    A pair of parentheses belongs to the level around it; what is in it does not.
    """
    found: list[list[int]] = []
    stack: list[list[int]] = [[]]
    for place, token in enumerate(tokens):
        if token.key == "(":
            stack[-1].append(place)
            stack.append([])
            continue
        if token.key == ")":
            found.append(stack.pop())
        stack[-1].append(place)
    return [*found, stack[0]]


def _is_last(tokens: Sequence[SqlToken], level: Sequence[int], at: int = -2) -> bool:
    """True if LAST n is at a position of a query, and LAST is not a name there."""
    if len(level) < 4 or tokens[level[at]].key != "LAST" or tokens[level[0]].key not in QUERY_STARTS:
        return False
    number = tokens[level[at + 1]]
    return number.kind in (NUMBER, PARAM) and tokens[level[at - 1]].key not in ("NULLS", ".", "AS", ",")


def _refuse_early_last(cursor: TokenCursor, tokens: Sequence[SqlToken], level: Sequence[int]) -> None:
    """Raise SqlInvalid where something follows LAST n."""
    for at in range(2, len(level) - 2):
        if _is_last(tokens, level, at):
            raise cursor.found_at("the end of the query behind LAST", tokens[level[at + 2]], _LAST_HINT)


def _check_last(cursor: TokenCursor, tokens: Sequence[SqlToken], level: Sequence[int]) -> None:
    """Raise SqlInvalid where LAST is combined with a clause that makes other rows than those of the table."""
    _count_of(cursor, tokens[level[-1]])
    keys = ["", *(tokens[place].key for place in level), "", "", ""]
    for at, key in enumerate(keys):
        before = keys[at - 1]
        if key in _NOT_WITH_LAST and before not in ("AS", ".", "IS", "NOT"):
            reason = f"LAST cannot be combined with {_IN_WORDS.get(key, key)}"
        elif key in _AGGREGATES and keys[at + 1] == "(" and keys[at + 3] != "OVER" and before != ".":
            reason = f"LAST cannot be combined with {key.lower()}()"
        else:
            continue
        raise cursor.error(reason, tokens[level[-2]].start, _LAST_HINT)


def _count_of(cursor: TokenCursor, token: SqlToken) -> Simple:
    count = simple_of(cursor, [token])
    if isinstance(count, Literal) and not (isinstance(count.value, int) and count.value <= LAST_MAX):
        raise cursor.error("LAST takes a whole number of rows", token.start, "Write it like LAST 100.")
    if count is None:
        raise cursor.error("LAST takes a whole number of rows or a parameter", token.start)
    return count


def _is_alone(tokens: Sequence[SqlToken]) -> bool:
    """True if a query without its LAST is `[SELECT expressions] FROM namespace.table [alias]`."""
    start = 0
    if tokens[0].key == "SELECT":
        start = next((at for at, token in enumerate(tokens) if token.key == "FROM"), len(tokens))
        if not all(_is_scalar(tokens, at) for at in range(1, start)):
            return False
    source = tokens[start:]
    if not source or source[0].key != "FROM" or table_at(source, 1) is None:
        return False
    alias = source[4:]
    if alias and alias[0].key == "AS":
        alias = alias[1:]
        if not alias:
            return False
    return not alias or (len(alias) == 1 and alias[0].kind in (WORD, QUOTED))


def _is_scalar(tokens: Sequence[SqlToken], at: int) -> bool:
    token = tokens[at]
    if token.key in ("SELECT", "OVER"):
        return False
    is_called = at + 1 < len(tokens) and tokens[at + 1].key == "("
    return not is_called or token.kind not in (WORD, QUOTED) or token.key in _SCALARS


def _point(cursor: TokenCursor, tokens: Sequence[SqlToken], *, has_last: bool) -> Point | None:
    """Return the point read that a query is, or None where it is anything more."""
    if tokens[0].key != "SELECT":
        return None
    start = next((at for at, token in enumerate(tokens) if token.key == "FROM"), 0)
    columns = _plain_columns(cursor, tokens[1:start])
    table = table_at(tokens, start + 1) if start else None
    if columns is None or table is None:
        return None
    name = table_name(cursor, table)
    rest = tokens[start + 4 :]
    if not rest:
        return Point(name, columns or None, {}) if has_last else None
    equals = equalities(cursor, rest[1:]) if rest[0].key == "WHERE" and len(rest) > 1 else None
    return None if equals is None else Point(name, columns or None, equals)


def _plain_columns(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> tuple[str, ...] | None:
    """Return the columns of `a, b`, nothing for `*`, and None for any other list."""
    if len(tokens) == 1 and tokens[0].key == "*":
        return ()
    if len(tokens) % 2 == 0 or any(token.key != "," for token in tokens[1::2]):
        return None
    columns = [column_of(cursor, token) for token in tokens[::2]]
    names = [column for column in columns if column is not None]
    return tuple(names) if len(set(names)) == len(columns) else None


_OPENS_QUERY = frozenset({"SELECT", "WITH", "FROM", "TABLE", "VALUES", "("})
_ENDS_FROM = frozenset(
    {
        "SELECT",
        "WHERE",
        "GROUP",
        "ORDER",
        "HAVING",
        "LIMIT",
        "OFFSET",
        "WINDOW",
        "QUALIFY",
        "UNION",
        "INTERSECT",
    }
    | {"EXCEPT", "FETCH", "LAST"}
)
_NAMES_NEXT = frozenset(
    {"JOIN", "TABLE", "SUMMARIZE", "DESCRIBE", "PIVOT", "UNPIVOT", "PIVOT_WIDER", "PIVOT_LONGER"}
)


def table_at(tokens: Sequence[SqlToken], at: int) -> tuple[SqlToken, SqlToken] | None:
    """Return both names where namespace.table is at a position, neither longer nor a function."""
    if at + 2 >= len(tokens) or tokens[at + 1].key != ".":
        return None
    first, second = tokens[at], tokens[at + 2]
    if first.key in RESERVED or not {first.kind, second.kind} <= {WORD, QUOTED}:
        return None
    is_more = at + 3 < len(tokens) and tokens[at + 3].key in (".", "(")
    return None if is_more else (first, second)


def table_name(cursor: TokenCursor, found: tuple[SqlToken, SqlToken]) -> TableName:
    """Return the name that `table_at` has found."""
    first, second = found
    return TableName(name_of(cursor.text, first), name_of(cursor.text, second), first.start)


def named_tables(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> tuple[TableName, ...]:
    """Return the tables behind FROM, JOIN and the commas of a FROM, each once, in their order."""
    found: dict[TableName, None] = {}
    # For every open parenthesis: whether a query or a part of FROM is in it, and whether FROM is open there.
    levels = [(True, False)]
    is_next = False
    for at, token in enumerate(tokens):
        is_query, is_from = levels[-1]
        key = token.key
        if is_next and tokens[at + 1 : at + 2] and tokens[at + 1].key == ":":
            continue  # an alias before its table
        if is_next and key == ":":
            continue
        if is_next and key != "(":
            named = table_at(tokens, at)
            if named is not None:
                found[table_name(cursor, named)] = None
        was_next, is_next = is_next, False
        if key == "(":
            opens = at + 1 < len(tokens) and tokens[at + 1].key in _OPENS_QUERY
            levels.append((opens or was_next, was_next))
            is_next = was_next
        elif key == ")":
            if len(levels) > 1:
                levels.pop()
        elif key == "FROM" and is_query and (at == 0 or tokens[at - 1].key != "DISTINCT"):
            levels[-1] = (True, True)
            is_next = True
        elif key in _NAMES_NEXT or (key == "," and is_from):
            is_next = True
        elif key in _ENDS_FROM:
            levels[-1] = (is_query, False)
    return tuple(found)
