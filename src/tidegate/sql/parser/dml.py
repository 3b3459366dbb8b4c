"""The grammar of INSERT, UPSERT, UPDATE and DELETE, and of their lists of values.

There are two readers of a VALUES list. The quick one takes plain values with a few calls of a regular
expression: 1,000 rows of 4 values take some 2 ms. Whatever it does not know (a comment, an expression, a
mistake) is read again token by token, which knows everything and says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidegate.errors import SqlInvalid
from tidegate.model.names import shorten
from tidegate.model.schemas import COLUMNS_MAX
from tidegate.sql.parser.cursor import PARAMETERS_MAX, TokenCursor
from tidegate.sql.parser.fragments import (
    CALLS,
    CONSTANTS,
    cell_of,
    expression,
    expression_tokens,
    fragment_of,
    where,
)
from tidegate.sql.parser.lexer import (
    NUMBER_CHARS_MAX,
    NUMBER_PATTERN,
    QUOTES_PATTERN,
    SPACE_CLASS,
    SqlToken,
    number_of,
    string_of,
)
from tidegate.sql.parser.select import QUERY_STARTS, select
from tidegate.sql.statements import (
    USE_DEFAULT,
    Cell,
    Delete,
    Fragment,
    Insert,
    Literal,
    Param,
    TableName,
    Update,
    UseDefault,
)

INSERT_SYNTAX = (
    "Syntax: INSERT|UPSERT INTO namespace.table [(column, …)] VALUES (value, …), …, "
    "or INSERT|UPSERT INTO namespace.table [(column, …)] SELECT …"
)
UPDATE_SYNTAX = "Syntax: UPDATE namespace.table SET column = value, … [WHERE condition]"
DELETE_SYNTAX = "Syntax: DELETE FROM namespace.table [WHERE condition]"

_NO_RETURNING = "RETURNING is not supported: the answer is the number of rows."


def insert(cursor: TokenCursor, *, upsert: bool) -> Insert:
    """Parse what follows INSERT or UPSERT."""
    cursor.syntax = INSERT_SYNTAX
    if cursor.is_at("OR"):
        raise cursor.unsupported("INSERT OR … is not supported.", "UPSERT INTO … writes a row in any case.")
    cursor.expect("INTO")
    table = cursor.table()
    columns: tuple[str, ...] | None = None
    if cursor.is_at("(") and not _is_query_ahead(cursor):
        columns = cursor.names("a column", limit=COLUMNS_MAX)
    rows, fragments, query = None, None, None
    sources: tuple[TableName, ...] = ()
    if cursor.take("VALUES", "VALUE"):
        rows, fragments = values(cursor, None if columns is None else len(columns))
    elif cursor.is_at("DEFAULT"):
        hint = "Name a column that has a default: INSERT INTO … (id) VALUES (DEFAULT)."
        raise cursor.unsupported("DEFAULT VALUES is not supported.", hint)
    elif cursor.is_at("(") and not _is_query_ahead(cursor):
        raise cursor.expected(["VALUES", "SELECT"])
    elif cursor.is_at(*QUERY_STARTS):
        selected = select(cursor, {"RETURNING"})
        query, sources = selected.query, selected.tables
    if cursor.is_at("ON"):
        raise cursor.unsupported("ON CONFLICT is not supported.", "UPSERT INTO … writes a row in any case.")
    _refuse_returning(cursor)
    if rows is None and fragments is None and query is None and not (cursor.is_at_end or cursor.is_at(")")):
        raise cursor.expected(["VALUES", "SELECT"] if columns else ["VALUES", "SELECT", "("])
    return Insert(table, columns, rows, fragments, query, upsert, sources)


def _is_query_ahead(cursor: TokenCursor) -> bool:
    """True if the parenthesis holds a query, and not names of columns."""
    return cursor.after().key in QUERY_STARTS


def update(cursor: TokenCursor) -> Update:
    """Parse what follows UPDATE."""
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


def delete(cursor: TokenCursor) -> Delete:
    """Parse what follows DELETE."""
    cursor.syntax = DELETE_SYNTAX
    cursor.expect("FROM")
    table = cursor.table()
    if cursor.is_at("USING"):
        hint = "Name the keys with a subquery: WHERE id IN (SELECT …)."
        raise cursor.unsupported("DELETE … USING is not supported.", hint)
    condition = where(cursor, {"RETURNING"})
    _refuse_returning(cursor)
    return Delete(table, condition)


def _refuse_returning(cursor: TokenCursor) -> None:
    if cursor.is_at("RETURNING"):
        raise cursor.unsupported(_NO_RETURNING, "SELECT the rows afterwards.")


ROWS_MAX = 100_000  # of a statement: it is one write batch; more rows are several statements

Rows = tuple[tuple[Cell, ...], ...]
FragmentRows = tuple[tuple[Fragment | UseDefault, ...], ...]

_SPACE = rf"[{SPACE_CLASS}]*+"
_CELL = (
    rf"(?:[+-]?{NUMBER_PATTERN}|[xX]?{QUOTES_PATTERN}|\?|\$[0-9]++|(?i:NULL|TRUE|FALSE|DEFAULT)"
    rf"|(?i:NOW|SNOWFLAKE_ID|UUID_V7)\(\)|(?i:TIMESTAMP|DATE)[{SPACE_CLASS}]++{QUOTES_PATTERN})"
)
_ROW = rf"\({_SPACE}{_CELL}{_SPACE}(?:,{_SPACE}{_CELL}{_SPACE}){{0,{COLUMNS_MAX - 1}}}\)"
# Rows are matched in blocks, because the matcher remembers a position for each.
_BLOCK = re.compile(rf"{_SPACE}{_ROW}{_SPACE}(?:,{_SPACE}{_ROW}{_SPACE}){{0,31}}")
_SPLIT = re.compile(rf"[{SPACE_CLASS}(,]*+({_CELL}){_SPACE}([,)])")


def values(cursor: TokenCursor, columns: int | None) -> tuple[Rows | None, FragmentRows | None]:
    """Consume the rows behind VALUES and return them: as cells when all are plain, else as fragments.

    `columns` is how many each row must have; None: as many as the first has.
    """
    start = cursor.token.start
    rows = _read_quickly(cursor, columns)
    if rows is not None:
        return rows, None
    cursor.forget_params(start)
    cursor.jump(start)
    return _read_slowly(cursor, columns)


def _read_quickly(cursor: TokenCursor, columns: int | None) -> Rows | None:
    """Return the rows when all is plain, and move behind them; None: read them token by token."""
    text, start = cursor.text, cursor.token.start
    split = _split_rows(cursor, start)
    if split is None:
        return None
    cells, marks, stop = split
    width = columns or marks.index(")") + 1
    count, rest = divmod(len(cells), width)
    if rest or marks != ("," * (width - 1) + ")") * count or width > COLUMNS_MAX:
        return None  # rows of different lengths
    made = _make_cells(cursor, cells, width, text.find("''", start, stop) >= 0)
    if made is None:
        return None
    cursor.jump(stop)
    # Behind a comment the list may continue.
    return None if cursor.is_at(",") else made


def _split_rows(cursor: TokenCursor, start: int) -> tuple[list[str], str, int] | None:
    """Return the texts of a list of plain rows, the sign behind each, and where the list ends.

    None where something else follows a comma. In blocks: other threads get their turn between two of them.
    """
    text, position = cursor.text, start
    cells: list[str] = []
    marks: list[str] = []
    row_count = 0
    while True:
        found = _BLOCK.match(text, position)
        if found is None:
            return None
        pairs = _SPLIT.findall(text, position, found.end())
        cells += [cell for cell, _ in pairs]
        marks.append("".join([mark for _, mark in pairs]))
        row_count += marks[-1].count(")")
        if row_count > ROWS_MAX:
            raise _too_many_rows(cursor, start)
        position = found.end()
        if text[position : position + 1] != ",":
            return cells, "".join(marks), text.rindex(")", start, position) + 1
        position += 1


def _make_cells(cursor: TokenCursor, cells: Sequence[str], width: int, has_quotes: bool) -> Rows | None:
    """Return the rows of cells' texts: column by column, or in order where there are parameters."""
    params = [cell for cell in cells if cell[0] in "?$"]
    if params:
        numbers = _note_params(cursor, params)
        if numbers is None:
            return None
        made = [next(numbers) if cell[0] in "?$" else _cell(cell) for cell in cells]
        whole = [cell for cell in made if cell is not None]
        return tuple(zip(*[iter(whole)] * width, strict=True)) if len(whole) == len(made) else None
    columns = []
    for at in range(width):
        column = _column(cells[at::width], has_quotes)
        if column is None:
            return None
        columns.append(column)
    return tuple(zip(*columns, strict=True))


def _note_params(cursor: TokenCursor, texts: Sequence[str]) -> Iterator[Param] | None:
    """Number parameters in their order; None where they are mixed or have gaps: errors need positions."""
    position = cursor.token.start
    if len({text[0] for text in texts}) > 1:
        return None
    if texts[0] == "?":
        return iter([Param(cursor.note_param("?", position)) for _ in texts])
    numbers = {text: int(text[1:]) for text in texts if len(text) <= len(f"${PARAMETERS_MAX}")}
    distinct = set(numbers.values())
    if len(numbers) != len(set(texts)) or distinct != set(range(1, len(distinct) + 1)):
        return None
    for number in distinct:
        cursor.note_param(f"${number}", position)
    return iter([Param(numbers[text]) for text in texts])


def _column(cells: Sequence[str], has_quotes: bool) -> Sequence[Cell] | None:
    """Return the cells of one column, which mostly are of one kind.

    None: only tokens can read one of them.
    """
    first = cells[0][0]
    if first == "'" and all(cell[0] == "'" for cell in cells):
        if has_quotes:
            return [Literal(cell[1:-1].replace("''", "'")) for cell in cells]
        return [Literal(cell[1:-1]) for cell in cells]
    if first in "-0123456789" and max(map(len, cells)) <= NUMBER_CHARS_MAX:
        try:
            return list(map(Literal, map(int, cells)))
        except ValueError:
            pass  # not all of them are whole numbers
    made = [cell for cell in map(_cell, cells) if cell is not None]
    return made if len(made) == len(cells) else None


def _cell(text: str) -> Cell | None:
    first = text[0]
    if first in "0123456789-+.":
        value = number_of(text)
        return None if value is None else Literal(value)
    if first in "'xX":
        string = string_of(text)
        return None if string is None else Literal(string)
    word = text.upper()
    if word == "DEFAULT":
        return USE_DEFAULT
    if word in CONSTANTS:
        return CONSTANTS[word]
    if word.endswith("()"):
        return CALLS[word[:-2]]
    return Literal(text[text.index("'") + 1 : -1].replace("''", "'"))


def _read_slowly(cursor: TokenCursor, columns: int | None) -> tuple[Rows | None, FragmentRows | None]:
    """Return the rows token by token; SqlInvalid says what is wrong with them."""
    rows: list[list[tuple[list[SqlToken], Cell | None]]] = []
    computed = 0
    while True:
        start = cursor.token.start
        if len(rows) == ROWS_MAX:
            raise _too_many_rows(cursor, start)
        rows.append(_row_tokens(cursor))
        columns = columns or len(rows[0])
        if len(rows[-1]) != columns:
            reason = f"row {len(rows)} has {_counted(len(rows[-1]))}, and {columns} would be right"
            raise cursor.error(reason, start, "Every row has a value for each column; DEFAULT is one, too.")
        computed += sum(cell is None for _, cell in rows[-1])
        if computed > COLUMNS_MAX:
            reason = f"there are more than {COLUMNS_MAX} values that have to be computed"
            raise cursor.error(reason, start, "Write plain values, bind them, or write several statements.")
        if not cursor.take(","):
            break
    if not computed:
        return tuple(tuple(cell for _, cell in row if cell is not None) for row in rows), None
    return None, tuple(tuple(_fragment_or_default(cursor, *pair) for pair in row) for row in rows)


def _fragment_or_default(
    cursor: TokenCursor, tokens: list[SqlToken], cell: Cell | None
) -> Fragment | UseDefault:
    return USE_DEFAULT if cell is USE_DEFAULT else fragment_of(cursor, tokens)


def _row_tokens(cursor: TokenCursor) -> list[tuple[list[SqlToken], Cell | None]]:
    """Consume one row in parentheses; return the tokens of each value, and its cell if it is plain."""
    row: list[tuple[list[SqlToken], Cell | None]] = []
    cursor.expect("(")
    while True:
        tokens = expression_tokens(cursor, "a value", {","})
        cell = cell_of(cursor, tokens)
        row.append((tokens, cell))
        if cell is not None:
            cursor.tokens_left += len(tokens)  # DuckDB does not see it
        if len(row) > COLUMNS_MAX:
            raise cursor.error(f"a row has more than {COLUMNS_MAX} values", tokens[0].start, "Give fewer.")
        if cursor.expect(",", ")") == ")":
            return row


def _counted(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


def _too_many_rows(cursor: TokenCursor, position: int) -> SqlInvalid:
    hint = "Send them in several statements, or as Arrow."
    return cursor.error(f"there are more than {ROWS_MAX} rows", position, hint)
