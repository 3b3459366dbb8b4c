"""Tokens: takes the text of a script, gives its words, names, strings, numbers, parameters and signs.

The rules are those of PostgreSQL, which DuckDB shares: comments nest, '' is a quote in a string, E'…' has
backslashes, $$…$$ is a string, a $ may stand inside a name. A text is scanned on demand, one token at a
time; lines and columns are only counted for errors.
"""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

from tidegate.errors import SqlInvalid
from tidegate.model.names import shorten

TEXT_CHARS_MAX = 16 * 1024 * 1024  # larger loads are sent as Arrow, which needs no parser
NUMBER_CHARS_MAX = 400  # a DOUBLE written without exponent has 309 digits at most
COMMENTS_MAX = 10_000  # one after the other, without anything between them
COMMENT_DEPTH_MAX = 64  # comments in comments; deeper ones are an attack or an accident

# Kinds of tokens. They are the names of the groups of the pattern below.
WORD = "word"
QUOTED = "quoted"
STRING = "string"
NUMBER = "number"
PARAM = "param"
SIGN = "sign"
END = "end"

# What DuckDB takes for a space: Python's own class is another one.
SPACE_CLASS = r"\t-\r \xa0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff"
# A name begins with a letter, an underscore or anything outside ASCII that is no space.
_NAME_START = rf"[^\x00-@\[-^`{{-\x7f{SPACE_CLASS}]"
_NAME_MORE = rf"[^\x00-#%-/:-@\[-^`{{-\x7f{SPACE_CLASS}]"
_NO_DOLLAR = rf"[^\x00-/:-@\[-^`{{-\x7f{SPACE_CLASS}]"
QUOTES_PATTERN = r"'[^']*+(?:''[^']*+)*+'"
NUMBER_PATTERN = r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"

# Repetitions are possessive: no text makes the pattern try twice, or remember where it could. None of them
# repeats a choice, which Python 3.11.0 to 3.11.4 get wrong.
_TOKEN = re.compile(
    rf"""[{SPACE_CLASS}]*+
    (?:(?P<string>[xXbBnN]?{QUOTES_PATTERN}
                 | \$(?P<tag>(?:{_NAME_START}{_NO_DOLLAR}*+)?)\$.*?\$(?P=tag)\$)
     | (?P<escaped>[eE]')
     | (?P<word>{_NAME_START}{_NAME_MORE}*+)
     | (?P<number>{NUMBER_PATTERN})
     | (?P<param>\?|\$[0-9]++)
     | (?P<quoted>"[^"]*+(?:""[^"]*+)*+")
     | (?P<line>--[^\r\n]*+)
     | (?P<comment>/\*)
     | (?P<sign>::|->>|->|<=|>=|<>|!=|==|=>|\|\||.)
     | (?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ESCAPED_EDGE = re.compile(r"\\.|''|'", re.DOTALL)

_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class Token(msgspec.Struct, frozen=True, gc=False):
    """A piece of the text; `key` is a word in capitals, a sign as it is, else empty."""

    kind: str
    key: str
    start: int
    stop: int
    number: int = 0  # of a parameter, once the cursor has passed it


class Place(msgspec.Struct, frozen=True):
    """Where something is: the number of the statement in its script, and the script."""

    text: str
    statement: int

    def error(self, reason: str, position: int, hint: str | None = None) -> SqlInvalid:
        """Return the error about what stands at a position."""
        line, column = line_and_column(self.text, position)
        values = {"line": line, "column": column, "statement": self.statement}
        return SqlInvalid(reason=f"{reason} ({describe_place(**values)}).", hint=hint, **values)


def describe_place(line: int, column: int, statement: int) -> str:
    """Return a place in words; the statement is named from the second on."""
    where = f"line {line}, column {column}"
    return f"{where}, statement {statement}" if statement > 1 else where


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Return the line and the column of a position, both from 1; columns count characters."""
    before = text.rfind("\n", 0, position)
    return text.count("\n", 0, position) + 1, position - before


def scan(place: Place, position: int) -> Token:
    """Return the token at or after a position, past spaces and comments; at the end of the text an END."""
    text = place.text
    for _ in range(COMMENTS_MAX):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise place.error("this cannot be read", position)
        kind = found.lastgroup
        start, stop = found.span(kind)
        if kind == WORD:
            return Token(WORD, text[start:stop].upper(), start, stop)
        if kind == SIGN:
            sign = text[start:stop]
            if sign in "'\"$`\\" or not sign.isprintable():
                raise _unreadable(place, sign, start)
            return Token(SIGN, sign, start, stop)
        if kind == "escaped":
            return Token(STRING, "", start, _escaped_stop(place, start))
        if kind not in ("line", "comment"):
            return Token(kind, "", start, stop)
        position = stop if kind == "line" else _comment_stop(place, start)
    raise place.error(f"there are more than {COMMENTS_MAX} comments in a row", position)


def _escaped_stop(place: Place, start: int) -> int:
    for edge in _ESCAPED_EDGE.finditer(place.text, start + 2):
        if edge[0] == "'":
            return edge.end()
    raise _unreadable(place, "'", start)


def _comment_stop(place: Place, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(place.text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
        if depth > COMMENT_DEPTH_MAX:
            raise place.error(f"comments nest deeper than {COMMENT_DEPTH_MAX}", edge.start())
    raise place.error("the comment that begins with /* is not closed", start, "Close it with */.")


def _unreadable(place: Place, sign: str, start: int) -> SqlInvalid:
    """Return the error for a character that begins nothing, or something that does not end."""
    if sign == "'":
        hint = "Close it with '. A quote inside a string is written twice: 'it''s'."
        return place.error("the string that begins here is not closed", start, hint)
    if sign == '"':
        return place.error("the name that begins here is not closed", start, 'Close it with ".')
    if sign == "$":
        hint = "Parameters are ? or $1, $2, …; a string between $$ and $$ has to be closed."
        return place.error("this is neither a parameter nor a string between dollar signs", start, hint)
    if sign == "`":
        return place.error("` begins nothing here", start, "Names are quoted with \", strings with '.")
    return place.error(f"the character {sign!a} may not stand here", start)


def shown(place: Place, token: Token) -> str:
    """Return a token as an error names it."""
    if token.kind == END:
        return "the end of the text"
    text = place.text[token.start : token.stop]
    if token.kind == STRING:
        return f"the string {shorten(text)}"
    if token.kind == QUOTED:
        return shorten(text)
    return f"'{shorten(text)}'"


def fold(name: str) -> str:
    """Return a name that is not quoted in small letters; only ASCII is folded, as DuckDB compares."""
    return name.lower() if name.isascii() else name.translate(_ASCII_LOWER)


def name_of(text: str, token: Token) -> str:
    """Return the name that a word or a quoted token means."""
    if token.kind == QUOTED:
        return text[token.start + 1 : token.stop - 1].replace('""', '"')
    return fold(text[token.start : token.stop])


def number_of(text: str) -> int | float | Decimal | None:
    """Return a number's value: int, Decimal with a point, float with an exponent; None: it is too large."""
    if len(text) > NUMBER_CHARS_MAX:
        return None
    if "e" in text or "E" in text:
        value = float(text)
        return None if value in (float("inf"), float("-inf")) else value
    return Decimal(text) if "." in text else int(text)


def string_of(text: str) -> str | bytes | None:
    """Return the value of a string's text; None for those whose meaning is left to DuckDB (E'', B'', N'')."""
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text[0] == "$":
        tag_stop = text.index("$", 1) + 1
        return text[tag_stop:-tag_stop]
    if text[0] in "xX":
        try:
            return bytes.fromhex(text[2:-1]) if " " not in text and text.isascii() else None
        except ValueError:
            return None
    return None
