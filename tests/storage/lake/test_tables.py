"""The lake: tables written by delta-rs, followed commit by commit, and what damage looks like."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate.errors import SqlUnsupported, StorageCorrupt, TableNotFound
from tidegate.storage.lake.tables import Lake, TableView

START = datetime(2026, 1, 1, 0, 0, 0, 123_456, UTC)


def rows(first: int, count: int) -> pa.Table:
    numbers = list(range(first, first + count))
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "small": pa.array([n % 100 for n in numbers], pa.int16()),
            "at": pa.array(
                [START + timedelta(microseconds=n) for n in numbers], pa.timestamp("us", tz="UTC")
            ),
            "local": pa.array([datetime(2026, 1, 1) + timedelta(seconds=n) for n in numbers]),
            "day": pa.array([date(2026, 1, 1) + timedelta(days=n % 9) for n in numbers]),
            "name": pa.array([f"{'long' * 20}-{n}" if n % 2 else f"n{n}" for n in numbers]),
            "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
            "ratio": pa.array([n / 3 for n in numbers]),
            "on": pa.array([n % 3 == 0 for n in numbers]),
            "tags": pa.array([[n] for n in numbers], pa.list_(pa.int64())),
        }
    )


def commit(folder: Path, version: int, *actions: dict[str, Any]) -> None:
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{version:020}.json").write_text(text)


def record_count(view: TableView) -> int:
    return sum(view.files["record_count"].to_pylist())


def listed(root: Path, name: str) -> pa.Table:
    return Lake(root).view(name).files.sort_by("path")


def test_only_folders_with_a_commit_are_tables(tmp_path: Path) -> None:
    assert Lake(tmp_path / "nowhere").names() == []
    write_deltalake(tmp_path / "b", rows(0, 1))
    write_deltalake(tmp_path / "a", rows(0, 1))
    (tmp_path / "half" / "_delta_log").mkdir(parents=True)
    (tmp_path / "half" / "_delta_log" / "_commit_1234.json.tmp").write_text("{}")
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("x")
    assert Lake(tmp_path).names() == ["a", "b"]
    with pytest.raises(TableNotFound) as caught:
        Lake(tmp_path).view("half")
    assert caught.value.hint == "Tables: lake.a, lake.b."


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/../a", "/a", "a\0"])
def test_a_name_never_leads_out_of_the_lake(tmp_path: Path, name: str) -> None:
    write_deltalake(tmp_path / "lake" / "b", rows(0, 1))
    write_deltalake(tmp_path / "a", rows(0, 1))
    with pytest.raises(TableNotFound):
        Lake(tmp_path / "lake").view(name)


def test_names_are_found_in_any_case(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "Events", rows(0, 1))
    assert Lake(tmp_path).view("events").name == "Events"


@pytest.mark.parametrize(
    "partition_by", [[], ["day"], ["small", "on"], ["name"], ["at"], ["local"], ["price"]]
)
def test_following_commits_gives_the_same_files_as_listing_anew(
    tmp_path: Path, partition_by: list[str]
) -> None:
    lake = Lake(tmp_path)
    folder = tmp_path / "t"
    write_deltalake(folder, rows(0, 4), partition_by=partition_by or None)
    first = lake.view("t")
    write_deltalake(folder, rows(10, 4), mode="append")
    write_deltalake(folder, rows(20, 4), mode="append")
    assert lake.view("t").files.sort_by("path").equals(listed(tmp_path, "t"))
    DeltaTable(folder).delete("id = 11")
    assert lake.view("t").files.sort_by("path").equals(listed(tmp_path, "t"))
    DeltaTable(folder).optimize.compact()
    view = lake.view("t")
    assert view.files.sort_by("path").equals(listed(tmp_path, "t"))
    assert (view.version, record_count(view)) == (DeltaTable(folder).version(), 11)
    assert (first.version, record_count(first)) == (0, 4), "a view never changes"


def test_nothing_new_gives_the_same_view(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", rows(0, 2))
    lake = Lake(tmp_path)
    assert lake.view("t") is lake.view("t")


def test_a_null_partition_value_is_null_either_way(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = pa.table({"p": pa.array(["x", None, "a b/c%*[1]"]), "v": [1, 2, 3]})
    write_deltalake(tmp_path / "t", table, partition_by=["p"])
    lake.view("t")
    write_deltalake(tmp_path / "t", table, mode="append")
    files = lake.view("t").files
    assert sorted(map(str, files["part.p"].to_pylist())) == sorted(["x", "None", "a b/c%*[1]"] * 2)
    assert files.sort_by("path").equals(listed(tmp_path, "t"))
    assert all((tmp_path / "t" / path).exists() for path in files["path"].to_pylist())


def test_bounds_of_times_reach_past_what_writers_cut_off(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", rows(0, 500))
    files = Lake(tmp_path).view("t").files
    assert files["min.at"][0].as_py() <= START
    assert files["max.at"][0].as_py() >= START + timedelta(microseconds=499)


def test_an_overwrite_an_evolved_schema_and_a_checkpoint_are_seen(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, pa.table({"a": [1]}))
    assert lake.view("t").schema.names == ["a"]
    write_deltalake(folder, pa.table({"a": [2], "b": ["x"]}), mode="append", schema_mode="merge")
    assert lake.view("t").schema.names == ["a", "b"]
    write_deltalake(folder, pa.table({"c": [1.5]}), mode="overwrite", schema_mode="overwrite")
    view = lake.view("t")
    assert (view.schema.names, view.file_count, view.version) == (["c"], 1, 2)
    DeltaTable(folder).create_checkpoint()
    for version in range(2):
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    assert Lake(tmp_path).view("t").file_count == 1


def test_a_table_that_was_made_again_is_opened_again(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    for _ in range(3):
        write_deltalake(folder, pa.table({"a": [1]}), mode="append")
    before = lake.view("t")
    shutil.rmtree(folder)
    with pytest.raises(TableNotFound):
        lake.view("t")
    for _ in range(3):
        write_deltalake(folder, pa.table({"a": [1, 2]}), mode="append")
    after = lake.view("t")
    assert after.table_id != before.table_id
    assert (after.version, record_count(after)) == (2, 6)


def test_a_made_again_table_with_a_lower_version_is_opened_again(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    for _ in range(3):
        write_deltalake(folder, pa.table({"a": [1]}), mode="append")
    lake.view("t")
    shutil.rmtree(folder)
    write_deltalake(folder, pa.table({"b": [1]}))
    assert (lake.view("t").version, lake.view("t").schema.names) == (0, ["b"])


@pytest.mark.parametrize("torn", [b'{"add": {"path": "x', b"", b"[1]\n", b"\xff\xfe"])
def test_a_torn_commit_is_named_and_other_tables_stay_readable(tmp_path: Path, torn: bytes) -> None:
    lake = Lake(tmp_path)
    write_deltalake(tmp_path / "bad", rows(0, 1))
    write_deltalake(tmp_path / "good", rows(0, 1))
    lake.view("bad")
    place = tmp_path / "bad" / "_delta_log" / f"{1:020}.json"
    place.write_bytes(torn)
    for seen in (lake, Lake(tmp_path)):
        with pytest.raises(StorageCorrupt) as caught:
            seen.view("bad")
        assert caught.value.values["place"] == str(place)
        assert record_count(seen.view("good")) == 1
    place.unlink()
    assert lake.view("bad").version == 0


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write_deltalake(folder, rows(0, 1))
    DeltaTable(folder).create_checkpoint()
    place = next((folder / "_delta_log").glob("*.checkpoint.parquet"))
    place.write_bytes(b"PAR1 and then nothing")
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(StorageCorrupt) as caught:
        Lake(tmp_path).view("t")
    assert caught.value.values["place"] == str(place)


def test_a_removed_file_that_was_not_known_leads_to_a_new_listing(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, rows(0, 1))
    lake.view("t")
    commit(folder, 1, {"remove": {"path": "never.parquet", "dataChange": True, "deletionTimestamp": 1}})
    view = lake.view("t")
    assert (view.version, view.file_count) == (1, 1)


def test_a_file_that_is_added_again_and_then_removed_is_gone(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, rows(0, 1))
    path = lake.view("t").files["path"][0].as_py()
    add = {"path": path, "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": False}
    commit(folder, 1, {"add": add})
    commit(folder, 2, {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}})
    assert lake.view("t").file_count == 0 == Lake(tmp_path).view("t").file_count


@pytest.mark.parametrize(
    "path", ["file:///etc/passwd", "/etc/passwd", "../other/x.parquet", "s3://bucket/x.parquet"]
)
def test_a_log_that_points_outside_the_table_is_refused(tmp_path: Path, path: str) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, rows(0, 1))
    lake.view("t")
    add = {"path": path, "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": True}
    commit(folder, 1, {"add": add})
    with pytest.raises(SqlUnsupported, match="outside"):
        lake.view("t")
    with pytest.raises((SqlUnsupported, StorageCorrupt)):
        Lake(tmp_path).view("t")


def with_protocol(folder: Path, features: list[str], configuration: dict[str, str], **more: Any) -> None:
    meta = next(
        action["metaData"]
        for action in map(json.loads, (folder / "_delta_log" / f"{0:020}.json").read_text().splitlines())
        if "metaData" in action
    )
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    if "columnMapping" in features:
        schema = json.loads(meta["schemaString"])
        for number, field in enumerate(schema["fields"]):
            field["metadata"] = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"c{number}",
            }
        meta["schemaString"] = json.dumps(schema)
    commit(
        folder,
        1,
        {"protocol": protocol},
        {"metaData": meta | {"configuration": configuration}},
        *more.values(),
    )


def inline_vector(row: int) -> dict[str, Any]:
    """Return a deletion vector of one row as the Delta protocol writes it into the log itself."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, row)
    packed = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    padded = packed + bytes(-len(packed) % 4)
    text = base64.b85encode(padded).decode().translate(str.maketrans(b85, z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(packed), "cardinality": 1}


def test_a_deletion_vector_is_refused_and_not_ignored(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, pa.table({"a": [1, 2, 3]}))
    path = lake.view("t").files["path"][0].as_py()
    with_protocol(folder, ["deletionVectors"], {"delta.enableDeletionVectors": "true"})
    assert lake.view("t").file_count == 1, "the feature alone hides no row"
    stats = json.dumps({"numRecords": 3})
    add = {
        "path": path,
        "size": 1,
        "partitionValues": {},
        "modificationTime": 1,
        "dataChange": True,
        "stats": stats,
    }
    remove = {"path": path, "dataChange": True, "deletionTimestamp": 1}
    commit(folder, 2, {"remove": remove}, {"add": add | {"deletionVector": inline_vector(1)}})
    for seen in (lake, Lake(tmp_path)):
        with pytest.raises(SqlUnsupported, match="deletion vectors"):
            seen.view("t")


@pytest.mark.parametrize(
    "features", [["columnMapping"], ["typeWidening"], ["variantType"], ["fromTheFuture"]]
)
def test_features_that_change_what_files_mean_are_refused(tmp_path: Path, features: list[str]) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, pa.table({"a": [1]}))
    lake.view("t")
    with_protocol(
        folder, features, {"delta.columnMapping.mode": "name"} if "columnMapping" in features else {}
    )
    with pytest.raises(SqlUnsupported):
        lake.view("t")


def test_readers_and_a_writer_at_the_same_time_see_whole_versions(tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "t"
    write_deltalake(folder, pa.table({"a": [0]}))
    wrong: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        last = -1
        while not stop.is_set():
            view = lake.view("t")
            if record_count(view) != view.version + 1 or view.version < last:
                wrong.append((view.version, record_count(view), last))
            last = view.version

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for number in range(30):
        write_deltalake(folder, pa.table({"a": [number]}), mode="append")
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert record_count(lake.view("t")) == 31
