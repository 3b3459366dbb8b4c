"""The identity of a deduplication: takes its rule and key columns, gives the file that says so, and digests.

A digest is 16 bytes: two 64-bit hashes, each big-endian. The first is Spark's `xxhash64` over, for each key
column in order, whether it is null and then its value; the second the same, after the number SALT (a bigint)
as the first column. Whole numbers of every width count as bigint, floats as double; -0.0 is 0.0, and NaN is
NaN. The key group is the first hash, as a signed number, modulo max_parallelism (Spark's pmod). What Spark
computes in the JVM is computed here for Arrow's columns, so that either goes on where the other left off.

`dedup.json` in the operator's folder of a checkpoint is put there once, by the first start, never changed.
Format 1 is a JSON document with its checksum as the last member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from tidegate.checkpoint.keys import spark_hash
from tidegate.checkpoint.keys.column_types import kind_named
from tidegate.checkpoint.keys.spark_hash import Hashes
from tidegate.errors import StateMismatch, StorageCorrupt, ValueInvalid
from tidegate.model.durations import Duration, format_duration
from tidegate.storage.sealed_json import seal, unseal

IDENTITY_FILE = "dedup.json"
FORMAT = 1

# The number that stands before the key columns in the second hash; any would do that is never changed.
SALT = 0x7469_6465_6761_7465

DIGEST_XXHASH = "xxhash64-pair"
DIGEST_CONTENT = "sha256"
DIGEST_EXACT = "exact"

# A column of a key whose name the caller does not know goes on with a column of any name.
UNNAMED = ""

_NULLS = "void"
_WIDER = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}
# What Java calls the NaN; all others count as this one.
_NAN_BITS = np.uint64(0x7FF8_0000_0000_0000)


class IdentityDepot(Protocol):
    """The folder of one operator in a checkpoint, as far as its identity needs it."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file that is not there; False when it is."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None when it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What must stay the same between two starts.

    `columns` are the key's: name, and kind as SQL writes it, by `digest_kind`. The retention may change while
    the interval stays: it is that of the first start here, and each batch's head says its own.
    """

    retention_us: int
    interval_us: int
    exact_keys: bool
    with_offsets: bool
    columns: tuple[tuple[str, str], ...]
    digest: str = DIGEST_XXHASH

    def to_bytes(self) -> bytes:
        """Return the sealed file."""
        return seal({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, stored: bytes, place: str) -> Identity:
        """Return the identity of a sealed file; StorageCorrupt for other bytes."""
        document = unseal(stored, place, FORMAT)
        del document["format"]
        try:
            columns = tuple((name, kind) for name, kind in document.pop("columns"))
            return cls(columns=columns, **document)
        except (KeyError, TypeError, ValueError) as problem:
            reason = f"it is no identity of format {FORMAT}"
            raise StorageCorrupt(place=place, reason=reason) from problem


def read_identity(depot: IdentityDepot, operator: str) -> Identity | None:
    """Return the identity of an operator; None when it never started, or is no deduplication."""
    stored = depot.read(IDENTITY_FILE)
    return None if stored is None else Identity.from_bytes(stored, f"{operator}/{IDENTITY_FILE}")


def check_identity(depot: IdentityDepot, wanted: Identity, operator: str) -> Identity:
    """Return the identity that the checkpoint has: the wanted one, written now, when it had none.

    StateMismatch where what is stored could not be found under the wanted one; nothing is written then.
    """
    stored = read_identity(depot, operator)
    if stored is None:
        if depot.put_new(IDENTITY_FILE, wanted.to_bytes()):
            return wanted
        stored = read_identity(depot, operator) or wanted
    for reason in _differences(stored, wanted):
        raise StateMismatch(operator=operator, reason=reason)
    return stored


def _differences(stored: Identity, wanted: Identity) -> list[str]:
    found = []
    if not _fit(stored.columns, wanted.columns):
        reason = f"its key is ({_shown(stored.columns)}), and now it is ({_shown(wanted.columns)}). "
        found.append(f"{reason}Every key is stored by these columns.")
    if (stored.exact_keys, stored.digest) != (wanted.exact_keys, wanted.digest):
        found.append(f"its keys are stored as {stored.digest}, and now as {wanted.digest}.")
    if stored.interval_us != wanted.interval_us:
        found.append(_other_interval(stored, wanted))
    if stored.with_offsets != wanted.with_offsets:
        had, has = ("with", "without") if stored.with_offsets else ("without", "with")
        found.append(f"it was started {had} offsets, and now it is {has} them. Times are stored that way.")
    return found


def _other_interval(stored: Identity, wanted: Identity) -> str:
    was, now = (format_duration(Duration(one.interval_us)) for one in (stored, wanted))
    reason = f"its segments are {was} long, and now they are {now}."
    if stored.retention_us != wanted.retention_us:
        reason += f" To change the retention, give interval='{was}' beside it."
    return reason


def _fit(stored: tuple[tuple[str, str], ...], wanted: tuple[tuple[str, str], ...]) -> bool:
    if len(stored) != len(wanted):
        return False
    for (old_name, old_kind), (name, kind) in zip(stored, wanted, strict=True):
        # Whole numbers of every width are stored alike.
        if digest_kind(old_kind) != digest_kind(kind) or (
            old_name != name and UNNAMED not in (old_name, name)
        ):
            return False
    return True


def _shown(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name or '(unnamed)'} {kind}" for name, kind in columns)


# ---- digests ----------------------------------------------------------------------------------------------


def digest_kind(kind: str) -> str:
    """Return the kind under which a column counts: SQL's whole numbers are one, and so are its floats."""
    return _WIDER.get(kind, kind)


def plain_column(column: Any) -> tuple[pa.Array, str]:
    """Return a key column as digests take it, and its kind; ValueInvalid for a type that is no key."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if at.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, target = _kind_of(array.type)
    try:
        return (array if array.type == target else array.cast(target)), kind
    except pa.ArrowInvalid as problem:
        raise ValueInvalid(place=f"a key of type {array.type}", reason=str(problem)) from problem


def _kind_of(found: pa.DataType) -> tuple[str, pa.DataType]:
    """Return kind and Arrow type of a key column of this Arrow type."""
    if at.is_null(found):
        return _NULLS, found
    if at.is_integer(found):
        return "bigint", pa.int64()
    if at.is_floating(found):
        return "double", pa.float64()
    if at.is_boolean(found):
        return "boolean", found
    if at.is_string(found) or at.is_large_string(found) or at.is_string_view(found):
        return "string", pa.string()
    if at.is_binary(found) or at.is_large_binary(found) or at.is_fixed_size_binary(found):
        return "binary", pa.binary()
    if at.is_date(found):
        return "date", pa.date32()
    if at.is_timestamp(found):
        return ("timestamp" if found.tz else "timestamp_ntz"), pa.timestamp("us", tz=found.tz)
    if at.is_decimal128(found):
        return f"decimal({found.precision},{found.scale})", found
    reason = "it is no key here; make it a string, bytes, a whole number or several columns"
    raise ValueInvalid(place=f"a key of type {found}", reason=reason)


def digest_columns(arrays: Sequence[pa.Array]) -> tuple[Hashes, Hashes]:
    """Return both hashes of many keys from their columns, which `plain_column` gave, as Spark gives them."""
    count = len(arrays[0])
    first = np.full(count, spark_hash.SEED, np.uint64)
    second = spark_hash.hash_longs(np.full(count, SALT, np.int64), first)
    for array in arrays:
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        first = _hashed(array, spark_hash.hash_ints(is_null, first))
        second = _hashed(array, spark_hash.hash_ints(is_null, second))
    return first, second


def _hashed(array: pa.Array, seeds: Hashes) -> Hashes:
    kind, _ = _kind_of(array.type)
    if kind == _NULLS:
        return seeds
    if kind != "double":
        return kind_named(kind).hash_column(array, seeds)
    numbers = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(numbers), _NAN_BITS, numbers.view(np.uint64))
    return spark_hash.keep_where_null(array, spark_hash.hash_longs(bits.view(np.int64), seeds), seeds)


def digest_bytes(groups: npt.NDArray[Any], first: Hashes, second: Hashes) -> npt.NDArray[np.uint8]:
    """Return the keys of the segments, shape (n, 18): key group u16, then both hashes, big-endian."""
    keys = np.empty(len(first), np.dtype([("group", ">u2"), ("first", ">u8"), ("second", ">u8")]))
    keys["group"], keys["first"], keys["second"] = groups, first, second
    return keys.view(np.uint8).reshape(len(first), keys.itemsize)
