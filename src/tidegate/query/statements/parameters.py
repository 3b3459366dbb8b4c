"""The parameters of one run of a statement, and the checked values of its clauses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from tidegate.errors import SqlInvalid
from tidegate.model.durations import Duration, parse_duration
from tidegate.model.names import shorten
from tidegate.model.times import parse_time
from tidegate.sql.parser.topics import AFTER_LEAST, NUMBER_MAX, number_text
from tidegate.sql.statements import DurationValue, Literal, Number, Param, StartAt, Text
from tidegate.topics.log.reader import Start

_JSON_HINT = "A payload is a text with JSON, such as '{\"a\": 1}', or a parameter."


class BoundParameters:
    """The parameters of one run of a statement."""

    def __init__(self, params: Sequence[Any]) -> None:
        self._params = params

    def text(self, value: Text, clause: str) -> str:
        """Return a text; a bound value has to be a text that is not empty."""
        if not isinstance(value, Param):
            return value
        actual = self._params[value.number - 1]
        if not isinstance(actual, str) or not actual:
            raise _wrong(clause, "a text", actual)
        return actual

    def optional_text(self, value: Text | None, clause: str) -> str | None:
        """Return a text, or None where the clause is missing."""
        return None if value is None else self.text(value, clause)

    def key(self, value: Text | None) -> str | None:
        """Return the key of messages; a bound null means that they have none."""
        if isinstance(value, Param) and self._params[value.number - 1] is None:
            return None
        return self.optional_text(value, "KEY")

    def number(self, value: Number, clause: str, least: int = 0, most: int = NUMBER_MAX) -> int:
        """Return a whole number between two, both in."""
        actual = self._params[value.number - 1] if isinstance(value, Param) else value
        if type(actual) is not int or not least <= actual <= most:
            raise _wrong(clause, number_text(least, most, actual), actual)
        return actual

    def optional_number(self, value: Number | None, clause: str) -> int | None:
        """Return a whole number from 0 on, or None where the clause is missing."""
        return None if value is None else self.number(value, clause)

    def ms(self, value: DurationValue, clause: str, *, least: int, most: int) -> int:
        """Return the whole milliseconds of a duration; SqlInvalid for one that is too short or too long."""
        if isinstance(value, Param):
            actual = self._params[value.number - 1]
            if not isinstance(actual, str):
                raise _wrong(clause, "a duration such as '5 s'", actual)
            value = parse_duration(actual)
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
            actual = self._params[start.value.number - 1]
            if not isinstance(actual, str):
                raise _wrong("TIMESTAMP", "a time in text", actual)
            return Start("timestamp", parse_time(actual))
        return Start("timestamp", start.value)

    def leases(self, leases: Sequence[Text], most: int) -> list[str]:
        """Return leases; a bound value may be a list of them."""
        found: list[str] = []
        for lease in leases:
            actual = self._params[lease.number - 1] if isinstance(lease, Param) else lease
            many = actual if isinstance(actual, list) else [actual]
            if not all(isinstance(one, str) for one in many):
                raise _wrong("a lease", "a text", actual)
            found += many
        if len(found) > most:
            raise SqlInvalid(reason=f"{len(found)} leases are more than {most}.", hint="Name fewer at once.")
        return found

    def payload(self, value: Literal | Param, row: int) -> bytes:
        """Return the JSON text of a payload: a text is JSON already, any other value is written as JSON."""
        actual = self._params[value.number - 1] if isinstance(value, Param) else value.value
        if isinstance(actual, Decimal):
            return str(actual).encode()
        if not isinstance(actual, str):
            return msgspec.json.encode(actual)
        content = actual.encode()
        try:
            msgspec.json.decode(content, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as problem:
            reason = f"row {row} of VALUES is not JSON: {problem}."
            raise SqlInvalid(reason=reason, hint=_JSON_HINT) from problem
        return content


def _wrong(clause: str, expected: str, actual: object) -> SqlInvalid:
    shown = shorten(json.dumps(actual, default=str, ensure_ascii=False))
    return SqlInvalid(reason=f"{clause} is {expected}, not {shown}.", hint=f"Write or bind {expected}.")
