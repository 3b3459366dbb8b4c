"""Routed payloads as JSON: takes MessagePack arrays of many messages, gives one line of JSON for each.

Works column by column, so that a message costs a few microseconds: one decode for all messages, one
conversion for each column that JSON shows otherwise, one encode for all lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from tidegate.model.schemas import ColumnType
from tidegate.model.timeranges import TIME_US_MAX, TIME_US_MIN, format_time
from tidegate.model.values import json_column

PREVIEW_NAME = "_preview"

# What MessagePack holds for a value of each type.
_STORED: dict[str, type] = {
    "BOOLEAN": bool,
    "INT": int,
    "BIGINT": int,
    "DATE": int,
    "TIMESTAMP": int,
    "DOUBLE": float,
    "BYTES": bytes,
    "DECIMAL": str,
    "TEXT": str,
    "JSON": str,
    "UUID": str,
}
# Below this many moments Python is quicker than a call of Arrow.
_TIMES_MIN = 32
_WHOLE_SECOND = r"\.000000$"
_WHOLE_MILLISECOND = r"(\.\d{3})000$"

Column = tuple[str, ColumnType]
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_loose = msgspec.msgpack.Decoder(list[list[Any]]).decode


class TextWriter:
    """Writes the payloads of one payload schema."""

    def __init__(self, columns: Sequence[Column], key_places: Sequence[int]) -> None:
        self._columns = list(columns)
        self._key = [columns[place] for place in key_places]
        self._key_places = list(key_places)
        self._names = [name for name, _ in columns]
        self._key_names = [name for name, _ in self._key]
        self._row = _maker(self._names)
        self._key_row = _maker(self._key_names)
        self._key_preview = _maker([*self._key_names, PREVIEW_NAME])
        self._decode_full = _decoder(self._columns)
        self._decode_key = _decoder(self._key)

    def full(self, packed: bytes) -> bytes:
        """Give the lines of whole rows."""
        shown = _shown_columns(zip(*self._decode_full(packed), strict=True), self._columns)
        return _encode_lines(list(map(self._row, *shown)))

    def keys(self, packed: bytes) -> bytes:
        """Give the lines of primary keys, with previews where there are any."""
        try:
            rows = self._decode_key(packed)
        except msgspec.ValidationError:
            return self._keys_with_previews(packed)
        return _encode_lines(list(map(self._key_row, *self._key_columns(rows))))

    def _keys_with_previews(self, packed: bytes) -> bytes:
        width = len(self._key)
        rows = _decode_loose(packed)
        for row in rows:
            if len(row) == width:
                row.append(UNSET)
            elif len(row) != width + 1:
                raise ValueError(f"a key has {width} values and not {len(row)}")
        previews = [row.pop() for row in rows]
        return _encode_lines(list(map(self._key_preview, *self._key_columns(rows), previews)))

    def _key_columns(self, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        return _shown_columns(zip(*rows, strict=True), self._key)

    def diffs(self, packed: bytes) -> bytes:
        """Give the lines of differences."""
        messages = _decode_loose(packed)
        shown: list[Any] = [None] * len(messages)
        for kind, write in enumerate((self._inserted, self._deleted, self._updated)):
            places = [place for place, message in enumerate(messages) if message[0] == kind]
            if places:
                found = write([messages[place][1:] for place in places])
                for place, one in zip(places, found, strict=True):
                    shown[place] = one
        if None in shown:
            raise ValueError(f"there is no difference of kind {messages[shown.index(None)][0]!r}")
        return _encode_lines(shown)

    def _inserted(self, messages: Sequence[Sequence[Any]]) -> list[Any]:
        columns = self._row_columns(messages)
        return self._whole(
            columns, [[UNSET if new is None else _Both(None, new) for new in column] for column in columns]
        )

    def _deleted(self, messages: Sequence[Sequence[Any]]) -> list[Any]:
        columns = self._row_columns(messages)
        return self._whole(
            columns, [[UNSET if old is None else _Both(old, None) for old in column] for column in columns]
        )

    def _row_columns(self, messages: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        return _shown_columns(zip(*[row for (row,) in messages], strict=True), self._columns)

    def _whole(self, columns: Sequence[Sequence[Any]], both: Sequence[Iterable[Any]]) -> list[Any]:
        """Give whole rows as differences; a column that is NULL before and after has not changed."""
        keys = map(self._key_row, *[columns[place] for place in self._key_places])
        return list(map(_Difference, keys, map(self._row, *both)))

    def _updated(self, messages: Sequence[Sequence[Any]]) -> list[Any]:
        # All values of a column are converted together, and taken out again in the order they went in.
        pools: list[list[Any]] = [[] for _ in self._columns]
        for _, places, old, new in messages:
            for place, before, after in zip(places, old, new, strict=True):
                pools[place] += (before, after)
        shown = [iter(_shown(pool, kind)) for pool, (_, kind) in zip(pools, self._columns, strict=True)]
        names = self._names
        changed = [
            {names[place]: _Both(next(shown[place]), next(shown[place])) for place in places}
            for _, places, _, _ in messages
        ]
        keys = map(self._key_row, *self._key_columns([key for key, _, _, _ in messages]))
        return list(map(_Difference, keys, changed))


class _Both(msgspec.Struct, gc=False):
    """A value before and after."""

    old: Any
    new: Any


class _Difference(msgspec.Struct, gc=False):
    """A row's primary key and what changed in it."""

    key: Any
    changed: Any


def _maker(names: Sequence[str]) -> Callable[..., Any]:
    """Give the function that makes an object of values, as quick to make and to write as there is."""
    fields: list[tuple[str, Any]] = [(f"field_{place}", Any) for place in range(len(names))]
    spelled = {field: name for (field, _), name in zip(fields, names, strict=True)}
    if any(char in name for name in names for char in '"\\'):
        # A struct writes the names of its fields as they are.
        return lambda *values: {
            name: value for name, value in zip(names, values, strict=True) if value is not UNSET
        }
    return msgspec.defstruct("Shown", fields, rename=spelled, gc=False)


def _decoder(columns: Sequence[Column]) -> Callable[[bytes], list[Any]]:
    kinds = tuple(_STORED[kind.name] | None for _, kind in columns)
    return msgspec.msgpack.Decoder(list[tuple[kinds]]).decode  # type: ignore[valid-type]


def _shown_columns(columns: Iterable[Sequence[Any]], kinds: Sequence[Column]) -> list[Sequence[Any]]:
    return [_shown(values, kind) for values, (_, kind) in zip(columns, kinds, strict=True)]


def _shown(values: Sequence[Any], kind: ColumnType) -> Sequence[Any]:
    """Give values as the JSON writer takes them; it shows BYTES, NaN and the infinities by itself."""
    convert = _CONVERTERS.get(kind.name)
    return values if convert is None else convert(values)


def _times(values: Sequence[Any]) -> list[Any]:
    if len(values) < _TIMES_MIN:
        return [None if value is None else format_time(value) for value in values]
    moments = pa.array(values, pa.int64())
    ends = pc.min_max(moments).as_py()
    if ends["min"] is not None and (ends["min"] < TIME_US_MIN or ends["max"] > TIME_US_MAX):
        raise ValueError("a moment is outside the years 1 to 9999")
    text = moments.cast(pa.timestamp("us")).cast(pa.string())
    short = pc.replace_substring_regex(text, pattern=_WHOLE_SECOND, replacement="")
    short = pc.replace_substring_regex(short, pattern=_WHOLE_MILLISECOND, replacement=r"\1")
    marked = pc.binary_join_element_wise(pc.replace_substring(short, " ", "T", max_replacements=1), "Z", "")
    return marked.to_pylist()  # type: ignore[no-any-return]


def _decimals(values: Sequence[Any]) -> list[Any]:
    return [value if value is None or "E" not in value else f"{Decimal(value):f}" for value in values]


def _documents(values: Sequence[Any]) -> list[Any]:
    """Give JSON texts as they are, but on one line: a line end in JSON can only stand between its parts."""
    return [None if value is None else msgspec.Raw(value.replace("\n", " ")) for value in values]


def _dates(values: Sequence[Any]) -> list[Any]:
    return json_column(values, ColumnType.DATE)


_CONVERTERS: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "TIMESTAMP": _times,
    "DECIMAL": _decimals,
    "JSON": _documents,
    "DATE": _dates,
}
