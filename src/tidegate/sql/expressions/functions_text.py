"""Functions of text: lengths and positions count code points, from 1; upper and lower case as in DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tidegate.model.tables import Row
from tidegate.sql.expressions.casts import cast
from tidegate.sql.expressions.types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    INTEGER_BITS,
    TEXT,
    CompiledExpr,
    RowFault,
    UnsupportedInLive,
    call,
    constant,
    refuse,
)

SUBSTRING_MAX = 2**32 - 1  # what DuckDB takes as a position or a length
TEXT_CHARS_MAX = 64 * 1024 * 1024  # four times the largest row; protects the memory of the server
# four times the largest row: a filter must not eat the memory of the server
PATTERNS_CACHED_MAX = 512  # compiled LIKE patterns that come from a column

# Letters and signs that never join with their neighbours to one character on the screen.
_LONE = re.compile(
    "[\x00-\u02ff\u0370-\u0482\u048a-\u052f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]*"
)


def text_of(expr: CompiledExpr, name: str) -> CompiledExpr:
    """Return an argument that must be TEXT (JSON is text, too), or refuse it."""
    if expr.sql_type.name in ("TEXT", "JSON"):
        return cast(expr, TEXT)
    raise refuse(
        f"{name} takes TEXT, not {expr.sql_type}.", f"Cast it: {name.rstrip('()')}(CAST(x AS TEXT))."
    )


def integer_of(expr: CompiledExpr, name: str) -> CompiledExpr:
    """Return an argument that must be a whole number, or refuse it."""
    if expr.sql_type.name in INTEGER_BITS:
        return cast(expr, BIGINT)
    raise refuse(f"{name} takes a whole number here, not {expr.sql_type}.", "Cast it: CAST(x AS BIGINT).")


def lower(text: str) -> str:
    """Return small letters, one for each letter: the end of a word and the language do not count."""
    if text.isascii() or not ("Σ" in text or "İ" in text):
        return text.lower()
    return "".join("i" if char == "İ" else char.lower() for char in text)


def upper(text: str) -> str:
    """Return capital letters, one for each letter: those without a single capital stay, but ß has ẞ."""
    if text.isascii():
        return text.upper()
    return "".join(map(_capital, text))


def _capital(char: str) -> str:
    if char == "ß":
        return "ẞ"
    for made in (char.upper(), char.title()):
        if len(made) == 1:
            return made
    return char


def substring(text: str, start: int, length: int = SUBSTRING_MAX) -> str:
    """Cut by code points: from 1, from the end where negative; a negative length goes backwards."""
    if not -SUBSTRING_MAX - 1 <= start <= SUBSTRING_MAX or not -SUBSTRING_MAX - 1 <= length <= SUBSTRING_MAX:
        raise RowFault("substring reaches too far")
    count = len(text)
    if start < 0:
        first = max(count + start, 0) if length >= 0 else count + start
        # What lies before the text uses up length, too.
        length = length + min(count + start, 0) if length >= 0 else length
    else:
        first = start - 1
        if start == 0 and length > 0:
            first, length = 0, length - 1
    if length < 0:
        return text[max(first + length, 0) : max(first, 0)]
    return text[max(first, 0) : max(first + length, 0)]


def left(text: str, count: int) -> str:
    """Return the first characters; all but the last ones where the count is negative."""
    return text[:count] if count >= 0 else text[: max(len(text) + count, 0)]


def right(text: str, count: int) -> str:
    """Return the last characters; all but the first ones where the count is negative."""
    if count >= 0:
        return text[max(len(text) - count, 0) :]
    return text[-count:]


def reverse(text: str) -> str:
    """Return the characters in reverse."""
    if text.isascii():
        return text[::-1]
    if not _LONE.fullmatch(text) or "\r\n" in text:
        raise UnsupportedInLive("live queries do not reverse a text with characters that may combine")
    return text[::-1]


def like(
    expr: CompiledExpr, pattern: CompiledExpr, escape: CompiledExpr | None, *, fold: bool
) -> CompiledExpr:
    """Return LIKE, or ILIKE with `fold`: both sides in small letters."""
    name = "ILIKE" if fold else "LIKE"
    expr, pattern = text_of(expr, name), text_of(pattern, name)
    mark = _escape_mark(escape, fold)
    if mark is None:
        return constant(None, BOOLEAN)
    compiled = lru_cache(PATTERNS_CACHED_MAX)(lambda text: compile_like(lower(text) if fold else text, mark))
    if pattern.constant and pattern.value is not None:
        test = _like_constant(pattern.value, mark, fold)
        return call(BOOLEAN, f"{name} {mark!r} {pattern.value!r}", test, expr)

    def matched(text: str, of: str) -> bool:
        return compiled(of)(lower(text) if fold else text)

    return call(BOOLEAN, f"{name} {mark!r}", matched, expr, pattern)


def _like_constant(pattern: str, mark: str, fold: bool) -> Callable[[str], bool]:
    try:
        test = compile_like(lower(pattern) if fold else pattern, mark)
    except RowFault as fault:
        raise refuse(f"The LIKE pattern is wrong: {fault}.") from fault
    return (lambda text: test(lower(text))) if fold else test


def _escape_mark(escape: CompiledExpr | None, fold: bool) -> str | None:
    if escape is None:
        return ""
    if not escape.constant or escape.sql_type.name not in ("TEXT", "NULL"):
        raise refuse("ESCAPE takes a text constant in a live query.")
    mark = escape.value
    if mark is not None and len(mark) > 1:
        raise refuse("ESCAPE takes one character.")
    if mark and (not mark.isascii() or mark in "%_" or (fold and mark.isalpha())):
        raise refuse(f"ESCAPE '{mark}' is not taken in a live query.", "Take a sign such as '\\' or '!'.")
    return None if mark is None else str(mark)


def compile_like(pattern: str, mark: str) -> Callable[[str], bool]:
    """Return the test of a LIKE pattern; RowFault for one that ends with its escape character."""
    parts = _like_parts(pattern, mark)
    if len(parts) == 1:
        whole = parts[0]
        return lambda text: len(text) == len(whole) and _fits(text, 0, whole)
    head, *middle, tail = parts
    fewest = sum(map(len, parts))
    plain = [part if isinstance(part, str) else None for part in (head, tail)]
    if len(middle) == 1 and not head and not tail and isinstance(middle[0], str):
        needle = middle[0]
        return lambda text: needle in text
    if not middle and None not in plain:
        return lambda text: (
            len(text) >= fewest and text.startswith(plain[0] or "") and text.endswith(plain[1] or "")
        )

    def test(text: str) -> bool:
        stop = len(text) - len(tail)
        if len(text) < fewest or not _fits(text, 0, head) or not _fits(text, stop, tail):
            return False
        place = len(head)
        for part in middle:
            place = _find(text, part, place, stop)
            if place < 0:
                return False
            place += len(part)
        return True

    return test


# A literal between two '%': plain text, or characters of which None stands for any one.
_Stretch = str | tuple[str | None, ...]


def _like_parts(pattern: str, mark: str) -> list[_Stretch]:
    parts: list[list[str | None]] = [[]]
    chars = iter(pattern)
    for char in chars:
        if mark and char == mark:
            literal = next(chars, None)
            if literal is None:
                raise RowFault("a LIKE pattern must not end with its escape character")
            parts[-1].append(literal)
        elif char == "%":
            parts.append([])
        else:
            parts[-1].append(None if char == "_" else char)
    middle = [part for part in parts[1:-1] if part]
    chosen = parts if len(parts) == 1 else [parts[0], *middle, parts[-1]]
    return [tuple(part) if None in part else "".join(map(str, part)) for part in chosen]


def _fits(text: str, place: int, part: _Stretch) -> bool:
    if isinstance(part, str):
        return text.startswith(part, place)
    return all(char is None or text[place + offset] == char for offset, char in enumerate(part))


def _find(text: str, part: _Stretch, start: int, stop: int) -> int:
    """Return the first position where a literal fits between start and stop, or -1."""
    if isinstance(part, str):
        return text.find(part, start, stop)
    places = range(start, stop - len(part) + 1)
    return next((place for place in places if _fits(text, place, part)), -1)


def _check_length(count: int) -> None:
    if count > TEXT_CHARS_MAX:
        raise RowFault(f"the text would have more than {TEXT_CHARS_MAX:,} characters")


def _joined(one: Any, other: Any) -> Any:
    _check_length(len(one) + len(other))
    return one + other


def concatenate(left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    """Return `||`: the texts of both sides; of BYTES, the bytes."""
    sql_types = (left.sql_type, right.sql_type)
    if sql_types == (BYTES, BYTES):
        return call(BYTES, "||", _joined, left, right)
    return call(TEXT, "||", _joined, *(_shown(expr, "||") for expr in (left, right)))


def _shown(expr: CompiledExpr, name: str) -> CompiledExpr:
    if expr.sql_type.name in ("BYTES", "INTERVAL") or (name == "||" and expr.sql_type.name == "NULL"):
        raise refuse(f"{name} takes no {expr.sql_type} in a live query.", "Cast it to TEXT.")
    return cast(expr, TEXT)


def _concat(args: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return concat(), which leaves NULLs out."""
    parts = [_shown(arg, "concat()") for arg in args]
    runs = [part.run for part in parts]

    def joined(row: Row) -> str:
        values = [value for run in runs if (value := run(row)) is not None]
        _check_length(sum(map(len, values)))
        return "".join(values)

    if all(part.constant for part in parts):
        return constant(joined(()), TEXT)
    return CompiledExpr(TEXT, f"concat({','.join(part.key for part in parts)})", joined)


def matches_regex(args: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return regexp_matches(): whether a part of the text fits, by the same RE2 that DuckDB has."""
    expr, pattern = text_of(args[0], "regexp_matches()"), args[1]
    if not pattern.constant or pattern.sql_type.name not in ("TEXT", "NULL"):
        raise refuse("regexp_matches() takes a text constant as its pattern in a live query.")
    if pattern.value is None:
        return constant(None, BOOLEAN)
    return call(BOOLEAN, f"regexp_matches {pattern.value!r}", _regex_test(pattern.value), expr)


def _regex_test(pattern: str) -> Callable[[str], bool]:
    import pyarrow as pa
    import pyarrow.compute as pc

    def test(text: str) -> bool:
        return bool(pc.match_substring_regex(text, pattern=pattern).as_py())

    try:
        test("")
    except pa.ArrowInvalid as problem:
        raise refuse(f"The pattern '{pattern}' is no regular expression of RE2: {problem}.") from problem
    return test


def _texts(
    name: str, sql_type: Any, function: Callable[..., Any]
) -> Callable[[Sequence[CompiledExpr]], CompiledExpr]:
    return lambda args: call(sql_type, name, function, *(text_of(arg, f"{name}()") for arg in args))


def _text_and_numbers(
    name: str, function: Callable[..., Any]
) -> Callable[[Sequence[CompiledExpr]], CompiledExpr]:
    def build(args: Sequence[CompiledExpr]) -> CompiledExpr:
        numbers = [integer_of(arg, f"{name}()") for arg in args[1:]]
        return call(TEXT, name, function, text_of(args[0], f"{name}()"), *numbers)

    return build


def _position(text: str, part: str) -> int:
    return text.find(part) + 1


def _replace(text: str, old: str, new: str) -> str:
    if not old:
        return text
    if len(new) > len(old):
        _check_length(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


_WORDS: dict[str, tuple[int, int, Any, Callable[..., Any]]] = {
    "lower": (1, 1, TEXT, lower),
    "lcase": (1, 1, TEXT, lower),
    "upper": (1, 1, TEXT, upper),
    "ucase": (1, 1, TEXT, upper),
    "length": (1, 1, BIGINT, len),
    "len": (1, 1, BIGINT, len),
    "char_length": (1, 1, BIGINT, len),
    "character_length": (1, 1, BIGINT, len),
    "trim": (1, 2, TEXT, lambda text, chars=" ": text.strip(chars)),
    "ltrim": (1, 2, TEXT, lambda text, chars=" ": text.lstrip(chars)),
    "rtrim": (1, 2, TEXT, lambda text, chars=" ": text.rstrip(chars)),
    "replace": (3, 3, TEXT, _replace),
    "reverse": (1, 1, TEXT, reverse),
    "starts_with": (2, 2, BOOLEAN, str.startswith),
    "prefix": (2, 2, BOOLEAN, str.startswith),
    "ends_with": (2, 2, BOOLEAN, str.endswith),
    "suffix": (2, 2, BOOLEAN, str.endswith),
    "contains": (2, 2, BOOLEAN, str.__contains__),
    "strpos": (2, 2, BIGINT, _position),
    "instr": (2, 2, BIGINT, _position),
    "position": (2, 2, BIGINT, _position),
}
_CUTS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "substring": (2, 3, substring),
    "substr": (2, 3, substring),
    "left": (2, 2, left),
    "right": (2, 2, right),
}

FUNCTIONS: dict[str, tuple[int, int, Callable[[Sequence[CompiledExpr]], CompiledExpr]]] = {
    **{name: (low, high, _texts(name, sql_type, act)) for name, (low, high, sql_type, act) in _WORDS.items()},
    **{name: (low, high, _text_and_numbers(name, act)) for name, (low, high, act) in _CUTS.items()},
    "concat": (1, 64, _concat),
    "regexp_matches": (2, 2, matches_regex),
}
