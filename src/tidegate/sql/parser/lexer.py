"""The one lexer of SQL text: words, names, strings, numbers, parameters and signs, without comments.

The rules are those of PostgreSQL, which DuckDB shares: comments nest, '' is a quote in a string, E'…' has
backslashes, $$…$$ is a string, a $ is allowed inside a name. The parser reads with `scan`, one token at a
time, and an error has its line and column. Whoever has only to know where statements begin and end reads
with `tokens_of`, which raises nothing. Both take linear time for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

import msgspec

from tidegate.errors import InvariantBroken, SqlInvalid
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
OPEN = "open"  # a string, a name or a comment that is not closed: everything up to the end of the text
UNKNOWN = "unknown"  # a character that begins nothing
_UNREADABLE_KINDS = frozenset({OPEN, UNKNOWN})

# What DuckDB takes for a space: Python's own class is another one.
SPACES = "\t\n\v\f\r \xa0" + "".join(map(chr, range(0x2000, 0x200C))) + "\u202f\u205f\u2060\u3000\ufeff"
SPACE_CLASS = re.escape(SPACES)
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
_DOLLAR_QUOTE = re.compile(rf"\$(?:{_NAME_START}{_NO_DOLLAR}*+)?\$")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ESCAPED_EDGE = re.compile(r"\\.|''|'", re.DOTALL)

_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class SqlToken(msgspec.Struct, frozen=True, gc=False):
    """A token by its place in the text; `key` is a word in capitals, a sign as it is, else empty.

    Of an OPEN or UNKNOWN token it names what is wrong.
    """

    kind: str
    key: str
    start: int
    stop: int
    number: int = 0  # of a parameter, once the cursor has passed it


class SourceText(msgspec.Struct, frozen=True):
    """A script, and the number of the statement that is read: what an error needs to name a position."""

    text: str
    statement: int

    def error(self, reason: str, position: int, hint: str | None = None) -> SqlInvalid:
        """Return the error about the token at a position."""
        line, column = line_and_column(self.text, position)
        values = {"line": line, "column": column, "statement": self.statement}
        return SqlInvalid(reason=f"{reason} ({describe_position(**values)}).", hint=hint, **values)


def describe_position(line: int, column: int, statement: int) -> str:
    """Return a position in words; the statement is named from the second on."""
    where = f"line {line}, column {column}"
    return f"{where}, statement {statement}" if statement > 1 else where


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Return the line and the column of a position, both from 1; columns count characters."""
    before = text.rfind("\n", 0, position)
    return text.count("\n", 0, position) + 1, position - before


def scan(source: SourceText, position: int) -> SqlToken:
    """Return the token at or after a position, or raise SqlInvalid; at the end of the text an END."""
    token = next_token(source.text, position)
    if token.kind in _UNREADABLE_KINDS:
        raise _unreadable(source, token)
    return token


def tokens_of(text: str) -> Iterator[SqlToken]:
    """Yield every token of a text, whatever it is; nothing comes after an OPEN one."""
    token = next_token(text, 0)
    while token.kind != END:
        yield token
        token = next_token(text, token.stop)


def next_token(text: str, position: int) -> SqlToken:
    """Return the token at or after a position, past spaces and comments: END, OPEN and UNKNOWN among them."""
    comments = 0
    while True:
        found = _TOKEN.match(text, position)
        if found is None:
            raise InvariantBroken(reason=f"the lexer has no token at {position}")
        kind = found.lastgroup or ""
        start, stop = found.span(kind)
        if kind == WORD:
            return SqlToken(WORD, text[start:stop].upper(), start, stop)
        if kind == SIGN:
            sign = text[start:stop]
            if sign in "'\"$`\\" or not sign.isprintable():
                return _unreadable_token(text, sign, start)
            return SqlToken(SIGN, sign, start, stop)
        if kind == "escaped":
            return _escaped_string(text, start)
        if kind not in ("line", "comment"):
            return SqlToken(kind, "", start, stop)
        end = stop if kind == "line" else _comment_end(text, start)
        if isinstance(end, SqlToken):
            return end
        position, comments = end, comments + 1
        if comments == COMMENTS_MAX:
            return SqlToken(OPEN, "comments", position, len(text))


def _unreadable_token(text: str, sign: str, start: int) -> SqlToken:
    """Return the token of a character that begins nothing, or something that does not end."""
    if sign in "'\"" or (sign == "$" and _DOLLAR_QUOTE.match(text, start)):
        return SqlToken(OPEN, sign, start, len(text))
    return SqlToken(UNKNOWN, sign, start, start + 1)


def _escaped_string(text: str, start: int) -> SqlToken:
    for edge in _ESCAPED_EDGE.finditer(text, start + 2):
        if edge[0] == "'":
            return SqlToken(STRING, "", start, edge.end())
    return SqlToken(OPEN, "'", start, len(text))


def _comment_end(text: str, start: int) -> int | SqlToken:
    """Return where a comment ends, or the OPEN token of one that does not."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
        if depth > COMMENT_DEPTH_MAX:
            return SqlToken(OPEN, "depth", edge.start(), len(text))
    return SqlToken(OPEN, "/*", start, len(text))


# What is wrong with an OPEN or UNKNOWN token, by its key, and what to do about it.
_UNREADABLE: Mapping[str, tuple[str, str | None]] = {
    "'": (
        "the string that begins here is not closed",
        "Close it with '. A quote inside a string is written twice: 'it''s'.",
    ),
    '"': ("the name that begins here is not closed", 'Close it with ".'),
    "$": (
        "this is neither a parameter nor a string between dollar signs",
        "Parameters are ? or $1, $2, …; a string between $$ and $$ has to be closed.",
    ),
    "`": ("` begins nothing here", "Names are quoted with \", strings with '."),
    "/*": ("the comment that begins with /* is not closed", "Close it with */."),
    "depth": (f"comments nest deeper than {COMMENT_DEPTH_MAX}", None),
    "comments": (f"there are more than {COMMENTS_MAX} comments in a row", None),
}


def _unreadable(source: SourceText, token: SqlToken) -> SqlInvalid:
    reason, hint = _UNREADABLE.get(token.key, (f"the character {token.key!a} is not allowed here", None))
    return source.error(reason, token.start, hint)


def shown(source: SourceText, token: SqlToken) -> str:
    """Return a token as an error names it."""
    if token.kind == END:
        return "the end of the text"
    text = source.text[token.start : token.stop]
    if token.kind == STRING:
        return f"the string {shorten(text)}"
    if token.kind == QUOTED:
        return shorten(text)
    return f"'{shorten(text)}'"


def fold(name: str) -> str:
    """Return a name that is not quoted in small letters; only ASCII is folded, as DuckDB compares."""
    return name.lower() if name.isascii() else name.translate(_ASCII_LOWER)


def name_of(text: str, token: SqlToken) -> str:
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
