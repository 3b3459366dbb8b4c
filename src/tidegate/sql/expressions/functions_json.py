"""JSON: one value out of a document, by a key, a position in a list, or a simple path.

`->` gives JSON, `->>` its text: a string without quotes, NULL for null. A value is written again as DuckDB
writes it: without spaces, numbers in their shortest form. Of equal keys the first counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidegate.sql.expressions.types import (
    INTEGER_BITS,
    JSON,
    TEXT,
    CompiledExpr,
    RowFault,
    call,
    constant,
    refuse,
)

Step = str | int

PATH_STEPS_MAX = 64
_PATH_HINT = "Paths: 'key', 0 (a place in a list, -1 the last), '$.key.other', '$.list[0]', '$.\"odd key\"'."
_STEP = re.compile(r'\.([A-Za-z0-9_]+)|\."([^"\\*]+)"|\[(-?[0-9]{1,9})\]')
_CONTROL = re.compile(r'["\\\x00-\x1f]')
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_SURROGATE = re.compile("[\ud800-\udfff]")


class _JsonNumber(str):
    """A number as DuckDB writes it."""

    __slots__ = ()


class _Members(list[tuple[str, Any]]):
    """The members of a document's object, in order; a key may be there twice."""

    __slots__ = ()


def _float(text: str) -> _JsonNumber:
    """Write a DOUBLE in its shortest form; one that is too large stays as it was written."""
    number = float(text)
    if not math.isfinite(number):
        return _JsonNumber(text)
    mantissa, _, exponent = f"{number!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    point = len(whole) + int(exponent or 0)
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if not digits:
        return _JsonNumber(f"{sign}0.0")
    if 0 < point <= 21:
        padded = digits.ljust(point, "0")
        return _JsonNumber(f"{sign}{padded[:point]}.{padded[point:] or '0'}")
    if -6 < point <= 0:
        return _JsonNumber(f"{sign}0.{'0' * -point}{digits}")
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return _JsonNumber(f"{sign}{digits[0]}{tail}e{point - 1}")


def _refused_word(word: str) -> Any:
    raise RowFault(f"{word} is no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Members, parse_float=_float, parse_int=_JsonNumber, parse_constant=_refused_word
)


def _parsed(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as problem:
        raise RowFault(f"the text is no JSON: {problem}") from problem


def _found(document: Any, steps: Sequence[Step]) -> Any:
    """Return the value that the steps lead to, or raise LookupError."""
    for step in steps:
        if isinstance(step, str):
            if not isinstance(document, _Members):
                raise LookupError
            document = next((value for key, value in document if key == step), _NOTHING)
            if document is _NOTHING:
                raise LookupError
        else:
            if not isinstance(document, list) or isinstance(document, _Members):
                raise LookupError
            document = document[step]
    return document


_NOTHING = object()


def _written(value: Any) -> str:
    if isinstance(value, _JsonNumber):
        return str(value)
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise RowFault("the JSON has half a character")
        return f'"{_CONTROL.sub(_escaped, value)}"'
    if isinstance(value, _Members):
        return "{" + ",".join(f"{_written(key)}:{_written(part)}" for key, part in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]


def _escaped(matched: re.Match[str]) -> str:
    return _SHORT.get(matched[0]) or f"\\u{ord(matched[0]):04X}"


def _extract(text: str, steps: Sequence[Step], as_text: bool) -> str | None:
    document = _parsed(text)
    try:
        value = _found(document, steps)
    except LookupError:
        return None
    if as_text and value is None:
        return None
    is_string = isinstance(value, str) and not isinstance(value, _JsonNumber)
    written = _written(value)
    return str(value) if as_text and is_string else written


def _steps(path: CompiledExpr) -> list[Step] | None:
    """Read a constant path."""
    if not path.constant or path.sql_type.name not in ("TEXT", "NULL", *INTEGER_BITS):
        raise refuse("A JSON path must be a constant in a live query.", _PATH_HINT)
    value = path.value
    if value is None or isinstance(value, int):
        return None if value is None else [value]
    if not value or value[0] in "/#" or "*" in value:
        raise refuse(f"The JSON path '{value}' is not taken in a live query.", _PATH_HINT)
    if value[0] != "$":
        return [value]
    steps: list[Step] = []
    place = 1
    while place < len(value):
        matched = _STEP.match(value, place)
        if matched is None or len(steps) == PATH_STEPS_MAX:
            raise refuse(f"The JSON path '{value}' is not taken in a live query.", _PATH_HINT)
        steps.append(int(matched[3]) if matched[3] else (matched[1] or matched[2]))
        place = matched.end()
    return steps


def extract(document: CompiledExpr, path: CompiledExpr, *, as_text: bool) -> CompiledExpr:
    """Return `document -> path`, or `document ->> path` as text."""
    name = "->>" if as_text else "->"
    if document.sql_type.name not in ("JSON", "TEXT", "NULL"):
        raise refuse(f"{name} takes JSON, not {document.sql_type}.")
    sql_type, steps = TEXT if as_text else JSON, _steps(path)
    if steps is None or document.is_null:
        return constant(None, sql_type)
    act: Callable[[str], str | None] = partial(_extract, steps=steps, as_text=as_text)
    return call(sql_type, f"{name} {steps!r}", act, document)


FUNCTIONS: dict[str, tuple[int, int, Callable[[Sequence[CompiledExpr]], CompiledExpr]]] = {
    "json_extract": (2, 2, lambda args: extract(args[0], args[1], as_text=False)),
    "json_extract_string": (2, 2, lambda args: extract(args[0], args[1], as_text=True)),
}
