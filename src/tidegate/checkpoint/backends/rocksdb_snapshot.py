"""The files of a RocksDB snapshot, named by their content.

RocksDB numbers its files, and the numbers of two databases of one partition collide. In a snapshot each table
file is named by its end, where RocksDB writes the id of the session that made the file, the file's number in
that session and the checksums of its index: never the same for two files, and the same for one file in every
snapshot. All else that RocksDB needs is in one more file, named by its digest:

    magic "TGROCKS" | format u8 | header length u32 | header JSON | manifest | BLAKE2b-128 of all before

The header has the manifest's name and, for each table file, RocksDB's name and ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

from tidegate.errors import StorageCorrupt
from tidegate.storage.files import link_or_copy

MAGIC = b"TGROCKS"
FORMAT = 1
INDEX_SUFFIX = ".rocks"
TABLE_SUFFIX = ".sst"
DIGEST_BYTES = 16

# RocksDB's properties of a table and its footer take about 1.5 KiB.
TABLE_END_BYTES = 4096

_HEAD = struct.Struct(">7sBI")


def pack_snapshot(folder: Path) -> list[Path]:
    """Rename the files of a folder that RocksDB linked by their content, and return all of them."""
    manifest = (folder / "CURRENT").read_text().strip()
    names: dict[str, str] = {}
    for table in sorted(folder.glob(f"*{TABLE_SUFFIX}")):
        name = table_name(table)
        names[table.name] = name
        table.replace(folder / name)
    header = json.dumps({"manifest": manifest, "tables": names}, sort_keys=True).encode()
    content = _HEAD.pack(MAGIC, FORMAT, len(header)) + header + (folder / manifest).read_bytes()
    digest = _digest(content)
    index = folder / f"{digest.hex()}{INDEX_SUFFIX}"
    index.write_bytes(content + digest)
    renamed = {index, *(folder / name for name in names.values())}
    for file in folder.iterdir():
        if file not in renamed:
            file.unlink()
    return sorted(renamed)


def unpack_snapshot(folder: Path) -> None:
    """Rename the files of a snapshot to RocksDB's names; a folder without a snapshot is left alone.

    CURRENT, from which RocksDB opens the folder, is written last: cut short, the next open repeats this.
    """
    indexes = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if not indexes:
        return
    if len(indexes) > 1:
        raise StorageCorrupt(place=str(folder), reason=f"it holds {len(indexes)} snapshots, one was expected")
    index = indexes[0]
    if not (folder / "CURRENT").exists():
        manifest, names, content = _read(index)
        _rename_tables(folder, names)
        (folder / manifest).write_bytes(content)
        spare = folder / "CURRENT.new"
        spare.write_text(f"{manifest}\n")
        spare.replace(folder / "CURRENT")
    index.unlink()


def table_name(table: Path) -> str:
    """Return the name that a table file has in every snapshot: a digest of its length and its end."""
    with table.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TABLE_END_BYTES))
        end = file.read()
    return _digest(size_bytes.to_bytes(8, "big") + end).hex() + TABLE_SUFFIX


def _rename_tables(folder: Path, names: dict[str, str]) -> None:
    for own, ours in names.items():
        if not (folder / own).exists():
            if not (folder / ours).exists():
                raise StorageCorrupt(place=str(folder / ours), reason="the snapshot's file is missing")
            link_or_copy(folder / ours, folder / own, sync=False)
    for ours in names.values():
        (folder / ours).unlink(missing_ok=True)


def _read(index: Path) -> tuple[str, dict[str, str], bytes]:
    content = index.read_bytes()
    body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if len(body) < _HEAD.size or _digest(body) != digest:
        raise StorageCorrupt(place=str(index), reason="its checksum is wrong")
    magic, format_here, header_bytes = _HEAD.unpack_from(body)
    if magic != MAGIC or format_here != FORMAT:
        raise StorageCorrupt(place=str(index), reason=f"format {format_here} is not one that we know")
    stop = _HEAD.size + header_bytes
    header = json.loads(body[_HEAD.size : stop])
    return header["manifest"], header["tables"], body[stop:]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
