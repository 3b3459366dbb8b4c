"""Bound values: takes what a statement has for a clause and its parameters, gives the value, checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from tidegate.errors import SqlInvalid
from tidegate.model.durations import Duration, parse_duration
from tidegate.model.names import shorten
from tidegate.model.timeranges import parse_time
from tidegate.sql.parser.topics import AFTER_LEAST, NUMBER_MAX, number_text
from tidegate.sql.statements import Literal, Number, Param, Span, StartAt, Text
from tidegate.topics.log.reader import Start

_JSON_HINT = "A payload is a text with JSON, such as '{\"a\": 1}', or a parameter."


class Bound:
    """The parameters of one run of a statement."""

    def __init__(self, params: Sequence[Any]) -> None:
        self._params = params

    def text(self, value: Text, clause: str) -> str:
        """Return a text; a bound value has to be one, and not empty."""
        if not isinstance(value, Param):
            return value
        given = self._params[value.number - 1]
        if not isinstance(given, str) or not given:
            raise _wrong(clause, "a text", given)
        return given

    def optional_text(self, value: Text | None, clause: str) -> str | None:
        """Return a text, or None where nothing was said."""
        return None if value is None else self.text(value, clause)

    def key(self, value: Text | None) -> str | None:
        """Return the key of messages; a bound null means that they have none."""
        if isinstance(value, Param) and self._params[value.number - 1] is None:
            return None
        return self.optional_text(value, "KEY")

    def number(self, value: Number, clause: str, least: int = 0, most: int = NUMBER_MAX) -> int:
        """Return a whole number between two, both in."""
        given = self._params[value.number - 1] if isinstance(value, Param) else value
        if type(given) is not int or not least <= given <= most:
            raise _wrong(clause, number_text(least, most, given), given)
        return given

    def optional_number(self, value: Number | None, clause: str) -> int | None:
        """Return a whole number from 0 on, or None where nothing was said."""
        return None if value is None else self.number(value, clause)

    def ms(self, value: Span, clause: str, *, least: int, most: int) -> int:
        """Return the whole milliseconds of a duration; refuse one that is too short or too long."""
        if isinstance(value, Param):
            given = self._params[value.number - 1]
            if not isinstance(given, str):
                raise _wrong(clause, "a duration such as '5 s'", given)
            value = parse_duration(given)
        if not least * 1_000 <= value.us <= most * 1_000:
            ends = f"{Duration(least * 1_000)} to {Duration(most * 1_000)}"
            raise SqlInvalid(reason=f"{clause} is {ends}, not {value}.", hint="Choose one between the two.")
        return value.us // 1_000

    def start(self, start: StartAt) -> Start:
        """Return where reading begins."""
        if start.kind != "timestamp":
            least = AFTER_LEAST if start.kind == "after" else 0
            return Start(start.kind, self.number(start.value, start.kind.upper(), least))
        if isinstance(start.value, Param):
            given = self._params[start.value.number - 1]
            if not isinstance(given, str):
                raise _wrong("TIMESTAMP", "a time in text", given)
            return Start("timestamp", parse_time(given))
        return Start("timestamp", start.value)

    def leases(self, leases: Sequence[Text], most: int) -> list[str]:
        """Return leases; a bound value may be a list of them."""
        found: list[str] = []
        for lease in leases:
            given = self._params[lease.number - 1] if isinstance(lease, Param) else lease
            many = given if isinstance(given, list) else [given]
            if not all(isinstance(one, str) for one in many):
                raise _wrong("a lease", "a text", given)
            found += many
        if len(found) > most:
            raise SqlInvalid(reason=f"{len(found)} leases are more than {most}.", hint="Name fewer at once.")
        return found

    def payload(self, value: Literal | Param, row: int) -> bytes:
        """Return the JSON text of a payload: a text is JSON already, any other value is written as JSON."""
        given = self._params[value.number - 1] if isinstance(value, Param) else value.value
        if isinstance(given, Decimal):
            return str(given).encode()
        if not isinstance(given, str):
            return msgspec.json.encode(given)
        content = given.encode()
        try:
            msgspec.json.decode(content, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as problem:
            reason = f"row {row} of VALUES is not JSON: {problem}."
            raise SqlInvalid(reason=reason, hint=_JSON_HINT) from problem
        return content


def _wrong(clause: str, wanted: str, given: object) -> SqlInvalid:
    shown = shorten(json.dumps(given, default=str, ensure_ascii=False))
    return SqlInvalid(reason=f"{clause} is {wanted}, not {shown}.", hint=f"Write or bind {wanted}.")
