"""Encrypted backup files: what was written comes out, and nothing comes out of a file that was changed."""

from __future__ import annotations

import hashlib
import io
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import BackupKeyUnusable, BackupUnusable
from tidegate.upkeep.backup.encryption import (
    CHUNK_BYTES,
    HEADER_BYTES,
    KEY_ID_BYTES,
    MAGIC,
    TAG_BYTES,
    BackupKey,
    DecryptingReader,
    EncryptingWriter,
    make_key,
    open_readable,
    read_key,
)

KEY = BackupKey(bytes(range(32)))
OTHER_KEY = BackupKey(bytes(32))
SALT, OTHER_SALT = b"\x01" * 32, b"\x02" * 32
SEALED_BYTES = CHUNK_BYTES + TAG_BYTES
SHORT = b"what version 1 wrote"
# What the first version wrote: these bytes must be readable for as long as there are backups.
GOLDEN_SHORT = (
    "8954474241434b0a01d67a8f0c305e08e801010101010101010101010101010101010101010101010101010101010101"
    "0184fe18919e6631ef9586b8116bc5dba4d8be9f0d215c86bbf734e4254c347371ac951c29"
)
GOLDEN_LONG_SHA256 = "f5f7b89f3838ee25821c4c8b04bb6918c62d553941c1f21592a2ac98256543da"
VERSION_AT = len(MAGIC)
KEY_ID_AT = VERSION_AT + 1
SALT_AT = KEY_ID_AT + KEY_ID_BYTES


def _plain(size_bytes: int) -> bytes:
    return b"".join(
        hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(size_bytes // 32 + 1)
    )[:size_bytes]


def _encrypted(content: bytes, key: BackupKey = KEY, salt: bytes = SALT) -> bytes:
    out = io.BytesIO()
    writer = EncryptingWriter(out, key, salt)
    writer.write(content)
    writer.end()
    return out.getvalue()


def _decrypted(file: bytes, key: BackupKey = KEY) -> bytes:
    return DecryptingReader(io.BytesIO(file), key, "b.tar").read(1 << 30)


CONTENT = _plain(2 * CHUNK_BYTES + 1_000)
FILE = _encrypted(CONTENT)
# Where each part of the file begins; its end is the beginning of the next.
STRUCTURE = (
    *(0, VERSION_AT, KEY_ID_AT, SALT_AT),
    *(HEADER_BYTES, HEADER_BYTES + CHUNK_BYTES),  # the first chunk, its tag
    *(HEADER_BYTES + SEALED_BYTES, HEADER_BYTES + SEALED_BYTES + CHUNK_BYTES),
    *(HEADER_BYTES + 2 * SEALED_BYTES, len(FILE) - TAG_BYTES),
)


def test_files_of_the_first_version_are_read_and_written_as_ever() -> None:
    assert _decrypted(bytes.fromhex(GOLDEN_SHORT)) == SHORT
    assert _encrypted(SHORT).hex() == GOLDEN_SHORT
    assert hashlib.sha256(FILE).hexdigest() == GOLDEN_LONG_SHA256
    assert _decrypted(FILE) == CONTENT


@settings(deadline=None, max_examples=40)
@given(
    parts=st.lists(st.integers(0, 2 * CHUNK_BYTES + 2), min_size=1, max_size=4),
    reads=st.integers(1, 3 * CHUNK_BYTES),
)
def test_parts_of_any_size_come_out_as_they_went_in(parts: list[int], reads: int) -> None:
    content = _plain(sum(parts) + 1)
    out, at = io.BytesIO(), 0
    writer = EncryptingWriter(out, KEY, SALT)
    for size in [*parts, 1]:
        assert writer.write(content[at : at + size]) == size
        at += size
    writer.end()
    reader = DecryptingReader(io.BytesIO(out.getvalue()), KEY, "b.tar")
    pieces = []
    while piece := reader.read(reads):
        pieces.append(piece)
    assert b"".join(pieces) == content
    assert all(len(piece) == reads for piece in pieces[:-1])
    chunks = -(-len(content) // CHUNK_BYTES)
    assert len(out.getvalue()) == HEADER_BYTES + len(content) + chunks * TAG_BYTES


def test_a_flipped_bit_in_every_part_is_found() -> None:
    ends = (*STRUCTURE[1:], len(FILE))
    for begin, end in zip(STRUCTURE, ends, strict=True):
        for at in {begin, (begin + end) // 2, end - 1}:
            for bit in (0, 7):
                changed = bytearray(FILE)
                changed[at] ^= 1 << bit
                with pytest.raises(BackupUnusable):
                    _decrypted(bytes(changed))


def test_a_cut_before_at_and_after_every_boundary_is_found() -> None:
    for place in (*STRUCTURE, len(FILE)):
        for at in {place - 1, place, place + 1}:
            if 0 <= at < len(FILE):
                with pytest.raises(BackupUnusable):
                    _decrypted(FILE[:at])


def test_bytes_behind_the_end_are_found() -> None:
    last = FILE[HEADER_BYTES + 2 * SEALED_BYTES :]
    for more in (b"\0", last, FILE, FILE[HEADER_BYTES : HEADER_BYTES + SEALED_BYTES]):
        with pytest.raises(BackupUnusable):
            _decrypted(FILE + more)


def test_chunks_in_another_order_twice_left_out_or_of_another_file_are_found() -> None:
    header, rest = FILE[:HEADER_BYTES], FILE[HEADER_BYTES:]
    first, second, last = rest[:SEALED_BYTES], rest[SEALED_BYTES : 2 * SEALED_BYTES], rest[2 * SEALED_BYTES :]
    other = _encrypted(CONTENT, salt=OTHER_SALT)
    foreign = other[HEADER_BYTES : HEADER_BYTES + SEALED_BYTES]
    orders = (
        (second, first, last),
        (first, first, last),
        (first, last),
        (second, last),
        (first, second),
        (first, second, last, last),
        (last,),
        (foreign, second, last),
    )
    for order in orders:
        with pytest.raises(BackupUnusable):
            _decrypted(header + b"".join(order))
    with pytest.raises(BackupUnusable):
        _decrypted(other[:HEADER_BYTES] + rest)
    assert _decrypted(header + first + second + last) == CONTENT


def test_no_byte_of_a_damaged_chunk_comes_out() -> None:
    changed = bytearray(FILE)
    changed[HEADER_BYTES + SEALED_BYTES + 5] ^= 1  # in the second chunk
    reader = DecryptingReader(io.BytesIO(bytes(changed)), KEY, "b.tar")
    assert reader.read(CHUNK_BYTES) == CONTENT[:CHUNK_BYTES]
    for _ in range(2):
        with pytest.raises(BackupUnusable, match="chunk 1 is damaged"):
            reader.read(1)


def test_a_file_whose_writer_did_not_come_to_its_end_is_not_read() -> None:
    out = io.BytesIO()
    EncryptingWriter(out, KEY, SALT).write(CONTENT)
    with pytest.raises(BackupUnusable, match="the file is cut"):
        _decrypted(out.getvalue())


def test_another_key_a_newer_version_and_a_plain_file_are_named() -> None:
    with pytest.raises(BackupUnusable, match=f"another key .id {KEY.id.hex()}; .* {OTHER_KEY.id.hex()}"):
        _decrypted(FILE, OTHER_KEY)
    with pytest.raises(BackupUnusable, match="encryption has version 2"):
        _decrypted(FILE[:VERSION_AT] + b"\2" + FILE[KEY_ID_AT:])
    with pytest.raises(BackupUnusable, match="not encrypted, and a key was given"):
        open_readable(io.BytesIO(b"admin.token" + bytes(1_000)), KEY, "b.tar")
    with pytest.raises(BackupUnusable, match="it is encrypted") as caught:
        open_readable(io.BytesIO(FILE), None, "b.tar")
    assert "--key KEYFILE" in caught.value.hint
    plain = open_readable(io.BytesIO(b"admin.token"), None, "b.tar")
    assert plain.read(100) == b"admin.token"


def test_nothing_of_the_content_or_the_key_is_in_the_file() -> None:
    file = _encrypted(b"the password of the database" * 5_000)
    assert b"password" not in file
    assert KEY.secret not in file
    assert _encrypted(SHORT) != _encrypted(SHORT, salt=OTHER_SALT)
    assert KEY.secret.hex() not in repr(KEY)


def test_a_file_larger_than_memory_takes_a_chunk_of_it(tmp_path: Path) -> None:
    part, count = bytes(1 << 20), 64
    tracemalloc.start()
    try:
        with (tmp_path / "b").open("wb") as out:
            writer = EncryptingWriter(out, KEY, SALT)
            for _ in range(count):
                writer.write(part)
            writer.end()
        with (tmp_path / "b").open("rb") as file:
            reader = DecryptingReader(file, KEY, "b")
            assert sum(len(piece) for piece in iter(lambda: reader.read(len(part)), b"")) == count * len(part)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(part)
    finally:
        tracemalloc.stop()


def test_a_key_is_written_once_and_only_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "key"
    made = make_key(file, KEY.secret)
    assert read_key(file) == made == KEY
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes().startswith(b"tidegate-backup-key-1:")
    with pytest.raises(BackupKeyUnusable, match="already exists"):
        make_key(file, OTHER_KEY.secret)
    assert read_key(file) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_key_that_others_may_reach_is_refused(tmp_path: Path, mode: int) -> None:
    make_key(tmp_path / "key", KEY.secret)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(BackupKeyUnusable, match=f"mode {mode:04o}"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a key"),
        (b"tidegate-backup-key-1:AAAA\n", "not a key"),
        (b"tidegate-backup-key-1:" + b"A" * 44, "not a key"),
        (b"tidegate-backup-key-1:" + b"!" * 43, "not a key"),
        (b"tidegate-backup-key-2:" + b"A" * 43, "newer version"),
        (b"\xff" * 5_000, "not a key"),
    ],
)
def test_what_is_no_key_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(BackupKeyUnusable, match=words):
        read_key(file)
    with pytest.raises(BackupKeyUnusable, match="No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(BackupKeyUnusable, match="directory"):
        read_key(tmp_path)
