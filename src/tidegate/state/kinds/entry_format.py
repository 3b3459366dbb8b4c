"""The format of a stored value, version 1:

    version u8 | flags u8 | [time i64 big-endian, ms since 1970, when flags & 1] | payload

`version` is that of the state's schema (1 to 255). The time is the one by which TTL counts; an entry that was
written before its state had a TTL carries none, and does not expire until it is written again.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.errors import StorageCorrupt

TimesMs: TypeAlias = npt.NDArray[np.int64]

FLAG_TIME = 1

SCHEMA_VERSION_MAX = 255

PLAIN_BYTES = 2
TIMED_BYTES = 10

_TIMED = struct.Struct(">BBq")

# Among times: there is no entry, or one that carries no time and does not expire.
NO_TIME = np.int64(-(2**63))

_HEAD = np.dtype([("version", "u1"), ("flags", "u1"), ("time", ">i8")])


def plain_header(version: int) -> bytes:
    """Return the header of a value without a time."""
    return bytes((version, 0))


def timed_header(version: int, time_ms: int) -> bytes:
    """Return the header of a value with a time."""
    return _TIMED.pack(version, FLAG_TIME, time_ms)


def split_value(stored: bytes) -> tuple[int, int | None, bytes]:
    """Return schema version, time and payload of a stored value; StorageCorrupt for other bytes."""
    if len(stored) < PLAIN_BYTES or stored[0] == 0:
        raise StorageCorrupt(
            place="a stored value", reason=f"its header is {stored[:PLAIN_BYTES].hex() or 'missing'}"
        )
    flags = stored[1]
    if flags == 0:
        return stored[0], None, stored[PLAIN_BYTES:]
    if flags != FLAG_TIME or len(stored) < TIMED_BYTES:
        raise StorageCorrupt(place="a stored value", reason=f"its header is {stored[:TIMED_BYTES].hex()}")
    return stored[0], _TIMED.unpack_from(stored)[2], stored[TIMED_BYTES:]


def time_of(stored: bytes) -> int | None:
    """Return the time of a stored value; None for one that carries none."""
    if len(stored) >= TIMED_BYTES and stored[1] == FLAG_TIME:
        return int(_TIMED.unpack_from(stored)[2])
    return split_value(stored)[1]


def packed_numbers(numbers: npt.NDArray[Any], version: int, times_ms: TimesMs | None) -> list[bytes]:
    """Return the stored values of numbers, all at once; with a time where there are times."""
    members: list[Any] = [("version", "u1"), ("flags", "u1"), ("time", ">i8"), ("number", numbers.dtype)]
    if times_ms is None:
        del members[2]
    rows = np.empty(len(numbers), np.dtype(members))
    rows["version"], rows["flags"], rows["number"] = version, 0, numbers
    if times_ms is not None:
        rows["flags"], rows["time"] = FLAG_TIME, times_ms
    return _each(rows)


def timed_values(version: int, times_ms: TimesMs, payloads: Sequence[bytes | None]) -> list[bytes | None]:
    """Return the stored values of payloads, each with its time; None stays None."""
    heads = np.empty(len(payloads), _HEAD)
    heads["version"], heads["flags"], heads["time"] = version, FLAG_TIME, times_ms
    if None not in payloads:
        return list(map(operator.add, _each(heads), payloads))
    pairs = zip(_each(heads), payloads, strict=True)
    return [None if payload is None else head + payload for head, payload in pairs]


def retimed(stored: Sequence[bytes], times_ms: TimesMs) -> list[bytes]:
    """Return stored values with other times; versions and payloads stay."""
    if len(set(map(len, stored))) == 1:
        width = len(stored[0])
        members: Any = [
            ("version", "u1"),
            ("flags", "u1"),
            ("time", ">i8"),
            ("rest", f"V{width - TIMED_BYTES}"),
        ]
        if width == TIMED_BYTES:
            del members[3]
        rows = np.frombuffer(b"".join(stored), np.dtype(members)).copy()
        rows["time"] = times_ms
        return _each(rows)
    heads = np.empty(len(stored), _HEAD)
    heads["version"] = np.frombuffer(bytes([one[0] for one in stored]), np.uint8)
    heads["flags"], heads["time"] = FLAG_TIME, times_ms
    return list(map(operator.add, _each(heads), [one[TIMED_BYTES:] for one in stored]))


def number_rows(
    stored: Sequence[bytes | None], version: int, dtype: np.dtype[Any], spare: bytes
) -> npt.NDArray[Any] | None:
    """Return stored numbers as rows of `version`, `number` and, where they carry one, `time`.

    Where nothing is stored, the version is 0 and the number what `spare` holds. None where not all that is
    stored is of one version and layout.
    """
    is_timed = next((one[1:2] == b"\x01" for one in stored if one is not None), False)
    members: list[Any] = [("version", "u1"), ("flags", "u1"), ("number", dtype)]
    fill = bytes((0, int(is_timed))) + spare
    if is_timed:
        members.insert(2, ("time", ">i8"))
        fill = _TIMED.pack(0, FLAG_TIME, int(NO_TIME)) + spare
    absent_count = stored.count(None)
    filled = [fill if one is None else one for one in stored] if absent_count else stored
    raw = b"".join(filled)  # type: ignore[arg-type]
    layout = np.dtype(members)
    if len(raw) != len(stored) * layout.itemsize:
        return None
    rows = np.frombuffer(raw, layout)
    # Where the sum of lengths fits by chance, a value of another width shifts versions or flags behind it.
    is_known = (rows["version"] == version) & (rows["flags"] == int(is_timed))
    return rows if np.count_nonzero(is_known) + absent_count == len(rows) else None


def heads_of(stored: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], TimesMs] | None:
    """Return versions and times of stored values that all carry a time; None where not all do."""
    raw = b"".join([one[:TIMED_BYTES] for one in stored])
    if len(raw) != len(stored) * TIMED_BYTES:
        return None
    heads = np.frombuffer(raw, _HEAD)
    if not (heads["flags"] == FLAG_TIME).all() or not heads["version"].all():
        return None
    return heads["version"], heads["time"].astype(np.int64)


def _each(rows: npt.NDArray[Any]) -> list[bytes]:
    """Return the bytes of each row."""
    each: list[bytes] = rows.view(f"V{rows.dtype.itemsize}").tolist()
    return each
