"""A cursor over the tokens of a script: one token of lookahead, parameter numbers, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.model.names import shorten
from tidegate.sql.parser.lexer import (
    END,
    PARAM,
    QUOTED,
    STRING,
    WORD,
    SourceText,
    SqlToken,
    describe_position,
    line_and_column,
    name_of,
    scan,
    shown,
    string_of,
)
from tidegate.sql.statements import TableName

PARAMETERS_MAX = 65_535  # as PostgreSQL; more values in a call are sent as arrays or as Arrow
TOKENS_MAX = 1_000_000  # some seconds; lists of plain values are not counted
# Of a statement, without plain values behind VALUES: these do not reach DuckDB, which takes seconds for more.
STATEMENT_TOKENS_MAX = 20_000
NESTING_MAX = 64  # parentheses and brackets; recursive parsers further on take no more than some hundred

# Words that DuckDB does not take for a column without quotes. AT is missing: fragments quote it.
_RESERVED_WORDS = """
ALL ANALYSE ANALYZE AND ANTI ANY ARRAY AS ASC ASOF ASYMMETRIC AUTHORIZATION BINARY BOTH BY CASE CAST CHECK
COLLATE COLLATION COLUMN CONCURRENTLY CONSTRAINT CREATE CROSS DEFAULT DEFERRABLE DESC DESCRIBE DISTINCT DO
ELSE END EXCEPT FALSE FETCH FOR FOREIGN FREEZE FROM FULL GLOB GROUP HAVING ILIKE IN INITIALLY INNER
INTERSECT INTO IS ISNULL JOIN LAMBDA LATERAL LEADING LEFT LIKE LIMIT NATURAL NOT NOTNULL NULL OFFSET ON
ONLY OR ORDER OUTER OVERLAPS PIVOT PIVOT_LONGER PIVOT_WIDER PLACING POSITIONAL PRIMARY QUALIFY REFERENCES
RETURNING RIGHT SELECT SEMI SHOW SIMILAR SOME SUMMARIZE SYMMETRIC TABLE TABLESAMPLE THEN TO TRAILING TRUE
UNION UNIQUE UNPACK UNPIVOT USING VARIADIC VERBOSE WHEN WHERE WINDOW WITH
"""
RESERVED = frozenset(re.findall("[A-Z_]+", _RESERVED_WORDS))
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = frozenset(OPENING.values())
T = TypeVar("T")


class TokenCursor:
    """A cursor over the tokens of a text; `syntax` is the hint of an error about the current token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.syntax = ""
        self.source = SourceText(text, 1)
        self.last_stop = 0  # where the token before the cursor ends
        self._params: dict[int, int] = {}  # number: position of its first use
        self._style = ""
        self._passed = 0
        self.tokens_left = STATEMENT_TOKENS_MAX  # of those that DuckDB may have to parse
        self.token = scan(self.source, 0)

    def begin_statement(self, number: int) -> None:
        """Count parameters from 1 again; errors name this statement from now on."""
        self.source = SourceText(self.text, number)
        self.syntax = ""
        self._params = {}
        self._style = ""
        self.tokens_left = STATEMENT_TOKENS_MAX

    def advance(self) -> SqlToken:
        """Consume the token and return it; a parameter gets its number."""
        token = self.token
        self._passed += 1
        if self._passed > TOKENS_MAX:
            hint = "Send values as parameters or as Arrow, or the statements in several calls."
            raise self.error(f"the text has more than {TOKENS_MAX} words and signs", token.start, hint)
        if token.kind == PARAM:
            number = self.note_param(self.text[token.start : token.stop], token.start)
            token = SqlToken(PARAM, "", token.start, token.stop, number)
        self.last_stop = token.stop
        self.token = scan(self.source, token.stop)
        return token

    def jump(self, position: int) -> None:
        """Move to the token at or after a position."""
        self.last_stop = position
        self.token = scan(self.source, position)

    def after(self) -> SqlToken:
        """Return the token behind the current one."""
        return scan(self.source, self.token.stop)

    # -- parameters

    def note_param(self, text: str, position: int) -> int:
        """Return the number of the parameter at a position; ? and $n in one statement are SqlInvalid."""
        style = text[0]
        if self._style not in ("", style):
            raise self.error("? and $1 cannot both be used in a statement", position, "Use one of the two.")
        self._style = style
        if style == "$":
            number = int(text[1:]) if len(text) <= len(f"${PARAMETERS_MAX}") else PARAMETERS_MAX + 1
        else:
            number = len(self._params) + 1
        if not 1 <= number <= PARAMETERS_MAX:
            hint = "Send many rows as arrays of parameters or as Arrow."
            raise self.error(f"parameters are numbered from 1 to {PARAMETERS_MAX}", position, hint)
        self._params.setdefault(number, position)
        return number

    def too_many_tokens(self, position: int) -> SqlInvalid:
        """Return the error about the first token that is too much for a statement."""
        hint = "Bind values as parameters; a list is one value: x = ANY (?). Or write several statements."
        reason = f"a statement has more than {STATEMENT_TOKENS_MAX} words and signs outside of plain values"
        return self.error(reason, position, hint)

    def forget_params(self, position: int) -> None:
        """Forget the parameters at and after a position, which is read again."""
        self._params = {number: place for number, place in self._params.items() if place < position}
        self._style = self._style if self._params else ""

    def parameter_count(self) -> int:
        """Return how many parameters the statement has; SqlInvalid where a number is left out."""
        count = max(self._params, default=0)
        if len(self._params) != count:
            missing = next(number for number in range(1, count + 1) if number not in self._params)
            hint = "Number parameters from $1 without gaps."
            raise self.error(f"${count} is used, but not ${missing}", self._params[count], hint)
        return count

    # -- the current token

    def is_at(self, *keys: str) -> bool:
        """True if the current token is one of these words (in capitals) or signs."""
        return self.token.key in keys

    @property
    def is_at_end(self) -> bool:
        """Whether the text or the statement ends here."""
        return self.token.kind == END or self.token.key == ";"

    def take(self, *keys: str) -> str:
        """Consume one of these words or signs and return it; empty where the token is another."""
        key = self.token.key
        if key not in keys:
            return ""
        self.advance()
        return key

    def expect(self, *keys: str) -> str:
        """Consume one of these words or signs and return it, or raise SqlInvalid."""
        if self.token.key not in keys:
            raise self.expected(keys)
        return self.advance().key

    def name(self, noun: str) -> str:
        """Consume a name and return it; a word of SQL has to be quoted."""
        token = self.token
        if token.kind not in (WORD, QUOTED):
            raise self.expected(noun)
        name = name_of(self.text, token)
        if token.key in RESERVED:
            hint = f'{token.key} is a word of SQL; as a name it is written "{name}". {self.syntax}'.rstrip()
            raise self.expected(noun, hint=hint)
        if not name:
            raise self.error("a name is empty", token.start, 'Write something between the two ".')
        self.advance()
        return name

    def names(self, noun: str, *, limit: int) -> tuple[str, ...]:
        """Consume a list of names in parentheses, all different, and return them."""
        found: dict[str, None] = {}
        self.expect("(")
        while True:
            position = self.token.start
            name = self.name(noun)
            if name in found:
                raise self.error(f"column '{shorten(name)}' is named twice", position, "Name it once.")
            found[name] = None
            if len(found) > limit:
                raise self.error(f"there are more than {limit} columns", position, "Name fewer.")
            if self.expect(",", ")") == ")":
                return tuple(found)

    def table(self) -> TableName:
        """Consume namespace.table and return it."""
        position = self.token.start
        namespace = self.name("a table")
        if not self.is_at("."):
            hint = f"Tables are <namespace>.<table>, such as chat.{shorten(namespace)}."
            raise self.expected("'.' and the name of the table", hint=hint)
        self.advance()
        if self.token.kind not in (WORD, QUOTED):
            raise self.expected("the name of the table")
        name = name_of(self.text, self.advance())
        if self.is_at("."):
            hint = "Tables are <namespace>.<table>; there is no third part."
            raise self.error(
                f"the name of the table ends before '.', after '{shorten(name)}'", position, hint
            )
        return TableName(namespace, name, position)

    def condition(self, *words: str) -> bool:
        """Consume IF EXISTS or IF NOT EXISTS; True if it was there."""
        if not self.take("IF"):
            return False
        for word in words:
            self.expect(word)
        return True

    def text_value(self, noun: str) -> str:
        """Consume a string and return its value."""
        token = self.token
        value = string_of(self.text[token.start : token.stop]) if token.kind == STRING else None
        if not isinstance(value, str):
            raise self.expected(noun)
        self.advance()
        return value

    def options(self, readers: Mapping[str, Callable[[TokenCursor, str], T]]) -> dict[str, T]:
        """Consume (name = value, …) and return the values, each read by the reader of its name."""
        found: dict[str, T] = {}
        self.expect("(")
        while True:
            position = self.token.start
            name = self.name("an option")
            if name not in readers:
                near = get_close_matches(name, readers, n=1, cutoff=0.4)
                hint = f"{f'Did you mean {near[0]}? ' if near else ''}Options: {', '.join(readers)}."
                raise self.error(f"there is no option '{shorten(name)}'", position, hint)
            if name in found:
                raise self.error(f"option '{name}' is named twice", position)
            self.expect("=")
            found[name] = readers[name](self, name)
            if self.expect(",", ")") == ")":
                return found

    # -- errors

    def error(self, reason: str, position: int, hint: str | None = None) -> SqlInvalid:
        """Return the error about the token at a position."""
        return self.source.error(reason, position, self.syntax if hint is None else hint)

    def expected(self, expectation: str | Iterable[str], *, hint: str | None = None) -> SqlInvalid:
        """Return the error that the current token is not what was expected."""
        keys = [] if isinstance(expectation, str) else list(expectation)
        described = expectation if isinstance(expectation, str) else one_of(keys)
        hint = self.syntax if hint is None else hint
        near = get_close_matches(self.token.key, [key for key in keys if key.isalpha()], n=1)
        if near:
            hint = f"Did you mean {near[0]}? {hint}".rstrip()
        return self.found_at(described, self.token, hint)

    def found_at(self, expectation: str, token: SqlToken, hint: str | None = None) -> SqlInvalid:
        """Return the error that a token is not what was expected there."""
        found = shown(self.source, token)
        return self.error(f"expected {expectation} but found {found}", token.start, hint)

    def unsupported(self, reason: str, hint: str | None = None) -> SqlUnsupported:
        """Return the error that the current token begins SQL which this server does not have."""
        line, column = line_and_column(self.text, self.token.start)
        values = {"line": line, "column": column, "statement": self.source.statement}
        where = describe_position(**values)
        return SqlUnsupported(reason=f"{reason.removesuffix('.')} ({where}).", hint=hint, **values)


def one_of(keys: Iterable[str]) -> str:
    """Return words and signs as a list for a sentence: A, B or ','."""
    names = [key if key.isalpha() else f"'{key}'" for key in keys]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
