"""The identity of a deduplication, a sealed file in the checkpoint, and the digests of its keys.

A digest is 16 bytes: two 64-bit hashes, each big-endian. The first is Spark's `xxhash64` over, for each key
column in order, whether it is null and then its value; the second the same with the number SALT (a bigint) as
an additional first column. Integers of every width are hashed as bigint, floats as double; -0.0 as 0.0, and
all NaNs as one. The key group is the first hash, as a signed number, modulo max_parallelism (Spark's pmod).
These are the functions that Spark computes in the JVM, here for Arrow columns, so that a job and a Python
consumer can continue from each other's checkpoint.

`dedup.json` in the operator's folder of a checkpoint is written once, by the first start, and never changed.
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
from tidegate.checkpoint.keys.column_types import column_type_named
from tidegate.checkpoint.keys.spark_hash import Hashes
from tidegate.errors import StateMismatch, StorageCorrupt, ValueInvalid
from tidegate.model.durations import Duration, format_duration
from tidegate.storage.sealed_json import seal, unseal

IDENTITY_FILE = "dedup.json"
FORMAT = 1

# The first column of the second hash. The value is arbitrary and must never change.
SALT = 0x7469_6465_6761_7465

DIGEST_XXHASH = "xxhash64-pair"
DIGEST_CONTENT = "sha256"
DIGEST_EXACT = "exact"

# The name of a key column that the caller does not know; it matches a column of any name.
UNNAMED = ""

_NULLS = "void"
_WIDER = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}
# Java's canonical NaN; all NaNs are hashed as this one.
_NAN_BITS = np.uint64(0x7FF8_0000_0000_0000)


class IdentityStore(Protocol):
    """The methods of a checkpoint store that the identity needs."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Create a file; False if it exists."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class DedupIdentity:
    """The settings that must be the same at every start.

    `columns` are those of the key: name, and SQL type by `digest_kind`. The retention may change while the
    interval stays: here it is that of the first start, and each commit record has its own.
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
    def from_bytes(cls, stored: bytes, place: str) -> DedupIdentity:
        """Return the identity of a sealed file; StorageCorrupt for other bytes."""
        document = unseal(stored, place, FORMAT)
        del document["format"]
        try:
            columns = tuple((name, kind) for name, kind in document.pop("columns"))
            return cls(columns=columns, **document)
        except (KeyError, TypeError, ValueError) as problem:
            reason = f"it is no identity of format {FORMAT}"
            raise StorageCorrupt(place=place, reason=reason) from problem


def read_identity(checkpoint_store: IdentityStore, operator: str) -> DedupIdentity | None:
    """Return the identity of an operator; None if it never started or is no deduplication."""
    stored = checkpoint_store.read(IDENTITY_FILE)
    return None if stored is None else DedupIdentity.from_bytes(stored, f"{operator}/{IDENTITY_FILE}")


def check_identity(checkpoint_store: IdentityStore, own: DedupIdentity, operator: str) -> DedupIdentity:
    """Return the identity in the checkpoint; `own` is written if there is none.

    StateMismatch if keys stored under the existing identity would not be found under `own`; nothing is
    written then.
    """
    stored = read_identity(checkpoint_store, operator)
    if stored is None:
        if checkpoint_store.put_new(IDENTITY_FILE, own.to_bytes()):
            return own
        stored = read_identity(checkpoint_store, operator) or own
    for reason in _differences(stored, own):
        raise StateMismatch(operator=operator, reason=reason)
    return stored


def _differences(stored: DedupIdentity, own: DedupIdentity) -> list[str]:
    found = []
    if not _fit(stored.columns, own.columns):
        reason = f"its key is ({_shown(stored.columns)}), and now it is ({_shown(own.columns)}). "
        found.append(f"{reason}Every key is stored by these columns.")
    if (stored.exact_keys, stored.digest) != (own.exact_keys, own.digest):
        found.append(f"its keys are stored as {stored.digest}, and now as {own.digest}.")
    if stored.interval_us != own.interval_us:
        found.append(_other_interval(stored, own))
    if stored.with_offsets != own.with_offsets:
        had, has = ("with", "without") if stored.with_offsets else ("without", "with")
        found.append(f"it was started {had} offsets, and now it is {has} them. Times are stored that way.")
    return found


def _other_interval(stored: DedupIdentity, own: DedupIdentity) -> str:
    was, now = (format_duration(Duration(one.interval_us)) for one in (stored, own))
    reason = f"its segments are {was} long, and now they are {now}."
    if stored.retention_us != own.retention_us:
        reason += f" To change the retention, give interval='{was}' beside it."
    return reason


def _fit(stored: tuple[tuple[str, str], ...], own: tuple[tuple[str, str], ...]) -> bool:
    if len(stored) != len(own):
        return False
    for (old_name, old_kind), (name, kind) in zip(stored, own, strict=True):
        # Integers of every width are stored the same.
        if digest_kind(old_kind) != digest_kind(kind) or (
            old_name != name and UNNAMED not in (old_name, name)
        ):
            return False
    return True


def _shown(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name or '(unnamed)'} {kind}" for name, kind in columns)


# ---- digests ----------------------------------------------------------------------------------------------


def digest_kind(kind: str) -> str:
    """Return the kind by which a column is hashed: bigint for all integers, double for all floats."""
    return _WIDER.get(kind, kind)


def plain_column(column: Any) -> tuple[pa.Array, str]:
    """Return a key column in the type that is hashed, and its kind; ValueInvalid if it is no key type."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if at.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, target = _kind_of(array.type)
    try:
        return (array if array.type == target else array.cast(target)), kind
    except pa.ArrowInvalid as problem:
        raise ValueInvalid(place=f"a key of type {array.type}", reason=str(problem)) from problem


def _kind_of(found: pa.DataType) -> tuple[str, pa.DataType]:
    """Return the kind of a key column of an Arrow type, and the Arrow type that is hashed."""
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
    """Return both hashes of each key, as Spark computes them; the columns are those of `plain_column`."""
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
        return column_type_named(kind).hash_column(array, seeds)
    numbers = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(numbers), _NAN_BITS, numbers.view(np.uint64))
    return spark_hash.keep_where_null(array, spark_hash.hash_longs(bits.view(np.int64), seeds), seeds)


def digest_bytes(groups: npt.NDArray[Any], first: Hashes, second: Hashes) -> npt.NDArray[np.uint8]:
    """Return keys as segments store them, shape (n, 18): key group u16, then both hashes, big-endian."""
    keys = np.empty(len(first), np.dtype([("group", ">u2"), ("first", ">u8"), ("second", ">u8")]))
    keys["group"], keys["first"], keys["second"] = groups, first, second
    return keys.view(np.uint8).reshape(len(first), keys.itemsize)
