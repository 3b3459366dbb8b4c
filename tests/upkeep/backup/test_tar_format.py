"""The format of a backup: what is written is read, and no changed byte goes unnoticed."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.errors import BackupUnusable
from tidegate.upkeep.backup.tar_format import (
    END,
    MANIFEST_NAME,
    BackupManifest,
    ManifestEntry,
    TarReader,
    check_path,
    decode_manifest,
    encode_manifest,
    header_of,
    padding_of,
)


def _archive(files: Sequence[tuple[str, bytes]]) -> bytes:
    parts = [header_of(path, len(content)) + content + padding_of(len(content)) for path, content in files]
    return b"".join(parts) + END


def _read(archive: bytes) -> list[tuple[str, bytes]]:
    reader = TarReader(io.BytesIO(archive), "x.tar")
    return [(entry.path, b"".join(entry.chunks())) for entry in reader.entries()]


PATHS = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=300)
FILES = st.lists(st.tuples(PATHS, st.binary(max_size=2000)), min_size=1, max_size=4)


@given(FILES)
@example([("\x80\n", b""), ("é\n\n", b"1"), ("n" * 200 + "\n", b"2")])
def test_what_is_written_is_read(files: list[tuple[str, bytes]]) -> None:
    files = [(path.strip("/") or "x", content) for path, content in files]
    assert _read(_archive(files)) == files


def test_any_tar_reads_it() -> None:
    files = [("engine/CURRENT", b"x" * 700), ("lake/" + "é" * 200, b""), ("a" * 150, b"\0" * 512)]
    with tarfile.open(fileobj=io.BytesIO(_archive(files))) as tar:
        found = []
        for entry in tar:
            content = tar.extractfile(entry)
            assert content is not None
            found.append((entry.name, content.read()))
    assert found == files


def test_every_flipped_bit_outside_the_contents_is_noticed() -> None:
    files = [("a", b"content"), ("b/" + "long" * 60, b"")]
    archive = _archive(files)
    contents = range(512, 512 + 7)  # the manifest's sums cover those
    for at in set(range(len(archive))) - set(contents):
        for bit in (0, 3, 7):
            broken = bytearray(archive)
            broken[at] ^= 1 << bit
            try:
                paths = [path for path, _ in _read(bytes(broken))]
            except BackupUnusable:
                continue
            # The end of a long path stands in one place only; the manifest does not know the other path.
            assert paths != ["a", files[1][0]], at


@given(st.integers(0, 2559))
def test_every_cut_is_noticed(at: int) -> None:
    archive = _archive([("a", b"x" * 300), ("b", b"")])
    assert len(archive) == 2560
    with pytest.raises(BackupUnusable):
        _read(archive[:at])


@pytest.mark.parametrize(
    "content", [b"", b"x", b"x" * 5000, bytes(511), bytes(600), b"a" * 156 + b"x" + bytes(900)]
)
def test_a_file_that_is_something_else_is_called_so(content: bytes) -> None:
    with pytest.raises(BackupUnusable, match="not a backup of Tidegate"):
        _read(content)


def test_a_tar_of_someone_else_is_called_so() -> None:
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    with pytest.raises(BackupUnusable, match="not a backup of Tidegate"):
        _read(other.getvalue())


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.LNKTYPE,
        tarfile.SYMTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.DIRTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        tarfile.AREGTYPE,
        tarfile.GNUTYPE_SPARSE,
        tarfile.GNUTYPE_LONGNAME,
    ],
)
def test_an_entry_that_is_no_plain_file_is_refused(kind: bytes) -> None:
    entry = tarfile.TarInfo("b")
    entry.mode, entry.type, entry.linkname = 0o600, kind, "../a"
    header = entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    with pytest.raises(BackupUnusable, match="the header after a is damaged"):
        _read(_archive([("a", b"")])[: -len(END)] + header + END)


@pytest.mark.parametrize("size_bytes", [-1, -5, -(1 << 70)])
def test_a_negative_size_is_refused(size_bytes: int) -> None:
    with pytest.raises(BackupUnusable, match="the header after a is damaged"):
        _read(_archive([("a", b"")])[: -len(END)] + header_of("b", size_bytes) + END)


def test_a_long_name_that_is_longer_than_any_is_not_read_into_memory() -> None:
    header = header_of("n" * 70_000, 0)
    with pytest.raises(BackupUnusable, match="the header after a is damaged"):
        _read(_archive([("a", b"")])[: -len(END)] + header + END)


def test_a_size_that_needs_a_long_header_is_read() -> None:
    reader = TarReader(io.BytesIO(header_of("large", 9 << 30)), "x.tar")
    entry = next(reader.entries())
    assert (entry.path, entry.size_bytes) == ("large", 9 << 30)


def test_something_behind_the_end_is_noticed() -> None:
    with pytest.raises(BackupUnusable, match="behind the end"):
        _read(_archive([("a", b"")]) + b"x")


MANIFEST = BackupManifest(
    "0.1.0", 2, "0123456789abcdef", "2026-01-01T00:00:00Z", (ManifestEntry("é", 3, "ab" * 32),)
)


def test_a_manifest_survives_the_way_there_and_back() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "x.tar") == MANIFEST


def test_every_flipped_bit_of_a_manifest_is_noticed() -> None:
    content = encode_manifest(MANIFEST)
    for at in range(len(content)):
        for bit in range(8):
            broken = bytearray(content)
            broken[at] ^= 1 << bit
            with pytest.raises(BackupUnusable):
                decode_manifest(bytes(broken), "x.tar")


def test_a_newer_format_is_refused_by_its_number() -> None:
    inner = encode_manifest(MANIFEST).replace(b'"format":1', b'"format":9')
    with pytest.raises(BackupUnusable, match="format 9") as caught:
        decode_manifest(inner, "x.tar")
    assert "newer" in caught.value.hint


def _hostile(**fields: object) -> bytes:
    """Return a manifest with the right sum over wrong fields."""
    inner = json.loads(encode_manifest(MANIFEST))["manifest"] | fields
    text = json.dumps(inner, separators=(",", ":"))
    return f'{{"manifest":{text},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}'.encode()


def test_the_same_fields_make_a_manifest_that_is_taken() -> None:
    assert decode_manifest(_hostile(), "x.tar") == MANIFEST


LAYOUTS: tuple[object, ...] = ("2", None, [2], 2.0, -1, True, {})
FORMATS: tuple[object, ...] = ("9", None, [9], {})
LISTS: tuple[object, ...] = (None, "x", {}, [None], [["a"]], [{"path": "a"}])


@pytest.mark.parametrize(
    "content",
    [
        *(_hostile(layout=layout) for layout in LAYOUTS),
        *(_hostile(format=version) for version in FORMATS),
        *(_hostile(files=files) for files in LISTS),
        _hostile(files=[{"path": ["a"], "bytes": 1, "sha256": "x"}]),
        _hostile(files=[{"path": "a", "bytes": -1, "sha256": "x"}], bytes=-1),
        _hostile(homeId=7),
        _hostile(createdAt=None),
        b"[" * 200_000,
        b'{"manifest":' * 100_000,
        b"null",
        b'{"manifest":null}',
        b'{"manifest":{"format":' + b"9" * 5000 + b"}}",
        b"",
    ],
    ids=lambda content: content[:60].decode(),
)
def test_a_manifest_that_no_writer_wrote_is_refused(content: bytes) -> None:
    with pytest.raises(BackupUnusable, match="damaged"):
        decode_manifest(content, "x.tar")


@pytest.mark.parametrize("path", ["a" * 256, "é" * 128, "/".join(["a" * 200] * 30), "\ud800"])
def test_a_name_that_no_disk_takes_is_refused(path: str) -> None:
    with pytest.raises(BackupUnusable):
        check_path(path, "x.tar")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\0b", "a/."])
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    with pytest.raises(BackupUnusable):
        check_path(path, "x.tar")


def test_a_plain_path_is_taken() -> None:
    assert str(check_path("lake/a b/part-0.parquet", "x.tar")) == "lake/a b/part-0.parquet"


def test_the_sum_of_a_manifest_is_over_what_it_says() -> None:
    inner = encode_manifest(MANIFEST)
    start, stop = inner.index(b'{"format"'), inner.rindex(b',"sha256"')
    assert hashlib.sha256(inner[start:stop]).hexdigest().encode() in inner[stop:]
    assert MANIFEST_NAME == "MANIFEST.json"
