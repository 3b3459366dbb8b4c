"""Schemas: what a checkpoint holds of an operator, and which code may go on with it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tidegate.checkpoint.keys.codec import KeyType
from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt
from tidegate.state.schema.migrations import Migration, StateRef, Upgrader
from tidegate.state.schema.schema import (
    OperatorSchema,
    SchemaRequest,
    StateSpec,
    check_schema,
    load_schema,
    newest_schema,
    resolve_schema,
    schema_changes,
)
from tidegate.state.serializers.registry import serializer_for

KEY = KeyType.from_json([["user_id", "string"], ["day", "date"]])


@dataclass
class Session:
    start: int
    count: int


@dataclass
class SessionV2:
    start: int
    count: int
    last: int = 0


@dataclass
class Sitting:
    """The same fields in another order, under another name."""

    count: int
    start: int


class Files(dict[str, bytes]):
    """An operator's folder in memory; `before_put` is what another task does first."""

    before_put: Any = None

    def put_new(self, name: str, content: bytes) -> bool:
        if self.before_put is not None:
            before, self.before_put = self.before_put, None
            before()
        if name in self:
            return False
        self[name] = content
        return True

    def read(self, name: str) -> bytes | None:
        return self.get(name)


def spec(name: str, kind: str, *types: Any, **rest: Any) -> StateSpec:
    serializer = rest.pop("serializer", serializer_for(types[-1]).name)
    return StateSpec(name, kind, types, serializer=serializer, **rest)


COUNT = spec("count", "value", int)
SESSION = spec("session", "value", Session, ttl={"ttl_ms": 1000})
FEATURES = spec("features", "map", str, int)
OFFSETS = spec("offsets", "operator-list", str, redistribute="split")


def wanted(*specs: StateSpec, **rest: Any) -> SchemaRequest:
    return dataclasses.replace(SchemaRequest("sessions", KEY, 128, specs), **rest)


FIRST = wanted(COUNT, SESSION, FEATURES, OFFSETS)


@pytest.fixture
def files() -> Files:
    files = Files()
    resolve_schema(files, FIRST)
    return files


def refused(files: Files, asked: SchemaRequest, kind: type[Exception] = StateMismatch) -> str:
    """Return the sentence with which both checks refuse; nothing is written."""
    before = dict(files)
    with pytest.raises(kind) as checked:
        check_schema(files, asked)
    with pytest.raises(kind) as resolved:
        resolve_schema(files, asked)
    assert str(checked.value) == str(resolved.value)
    assert files == before
    return str(checked.value)


def test_states_get_numbers_and_keep_them(files: Files) -> None:
    assert list(files) == ["schema.1.json"]
    schema = resolve_schema(files, FIRST)
    assert schema.number == 1
    assert {name: state.number for name, state in schema.states.items()} == {
        "count": 1,
        "session": 2,
        "features": 3,
        "offsets": 4,
    }
    extra = spec("extra", "list", str)
    again = resolve_schema(files, wanted(extra, OFFSETS, FEATURES, SESSION))
    assert (again.states["extra"].number, again.states["count"].number) == (5, 1)
    assert again.states["count"].dropped
    assert list(files) == ["schema.1.json", "schema.2.json"]
    third = resolve_schema(files, wanted(COUNT, spec("more", "value", int)))
    assert (third.states["count"].number, third.states["more"].number) == (1, 6)
    assert schema_changes(again, third) == dataclasses.replace(
        schema_changes(again, again),
        added=("more",),
        dropped=("session", "features", "offsets", "extra"),
        returned=("count",),
    )


def test_nothing_is_written_when_nothing_changed(files: Files) -> None:
    before = dict(files)
    resolve_schema(files, wanted(OFFSETS, FEATURES, SESSION, COUNT))
    assert files == before
    other = spec("session", "value", Sitting, ttl={"ttl_ms": 1000})
    assert resolve_schema(files, wanted(COUNT, other, FEATURES, OFFSETS)).states["session"].number == 2
    assert files == before


def test_a_check_writes_nothing() -> None:
    files = Files()
    assert check_schema(files, FIRST).number == 1
    assert files == {}


def test_another_ttl_and_another_way_to_share_out_are_noted(files: Files) -> None:
    longer = dataclasses.replace(SESSION, ttl={"ttl_ms": 5000})
    union = dataclasses.replace(OFFSETS, redistribute="union")
    schema = resolve_schema(files, wanted(COUNT, longer, FEATURES, union))
    assert schema.number == 2
    assert schema.states["session"].ttl == {"ttl_ms": 5000}
    assert newest_schema(files, "sessions") == schema


def test_the_file_comes_back_as_it_was(files: Files) -> None:
    schema = resolve_schema(files, FIRST)
    assert load_schema(files["schema.1.json"], "here") == schema
    assert OperatorSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_damaged_file_and_a_newer_format_are_said_so(files: Files) -> None:
    good = files["schema.1.json"]
    for damaged in (good[:-5], good.replace(b"128", b"129"), b"[]", b"", b"\xff"):
        with pytest.raises(StorageCorrupt, match=r"sessions/schema\.1\.json"):
            newest_schema(Files({"schema.1.json": damaged}), "sessions")
    with pytest.raises(StorageCorrupt, match="format 2; this version reads 1"):
        load_schema(good.replace(b'"format": 1', b'"format": 2'), "here")


def test_tasks_that_start_together_agree(files: Files) -> None:
    grown = wanted(COUNT, SESSION, FEATURES, OFFSETS, spec("extra", "value", int))
    files.before_put = lambda: resolve_schema(files, grown)
    assert resolve_schema(files, grown).number == 2
    assert list(files) == ["schema.1.json", "schema.2.json"]


def test_two_states_with_one_name_are_refused(files: Files) -> None:
    """Case 3: before any row is touched."""
    twice = wanted(COUNT, spec("count", "list", str))
    assert "two of its states are named 'count'" in refused(files, twice, StateInvalid)
    assert "two of its states are named 'count'" in refused(Files(), twice, StateInvalid)


def test_a_changed_type_without_a_version_is_refused(files: Files) -> None:
    """Case 3: a changed type without a migration."""
    text = refused(files, wanted(spec("session", "value", SessionV2)))
    assert "version 1 of state 'session' is Session(start: int, count: int) there and SessionV2(" in text
    assert "Raise its version to 2 and add a Migration." in text
    assert "version 1 of state 'count' is int there and float in the code" in refused(
        files, wanted(spec("count", "value", float))
    )


def test_a_new_version_needs_its_migration_and_keeps_the_old_type(files: Files) -> None:
    """Case 14: a missing step is refused at start."""
    second = spec("session", "value", SessionV2, version=2)
    assert "no migration leads from version 1 towards 2" in refused(files, wanted(second))
    migrated = wanted(second, migrations={"session": (Migration(1, 2),)})
    schema = resolve_schema(files, migrated)
    stored = schema.states["session"]
    assert sorted(stored.versions) == [1, 2]
    assert schema_changes(load_schema(files["schema.1.json"], ""), schema).migrated == ("session",)
    assert resolve_schema(files, migrated).number == 2
    reader = Upgrader(
        SessionV2,
        stored.forms(),
        (Migration(1, 2),),
        serializer=serializer_for(SessionV2),
        ref=StateRef("sessions", "session"),
    )
    assert reader.decode(1, serializer_for(Session).encode(Session(1, 2))) == SessionV2(1, 2, 0)


def test_a_version_newer_than_the_code_is_refused(files: Files) -> None:
    """Case 14: refused at start."""
    second = spec("session", "value", SessionV2, version=2)
    resolve_schema(files, wanted(second, migrations={"session": (Migration(1, 2),)}))
    text = refused(files, wanted(SESSION))
    assert (
        "state 'session' was written in version 2, and this code knows version 1. Run the newer code." in text
    )


def test_another_serializer_without_a_version_is_refused(files: Files) -> None:
    text = refused(files, wanted(spec("session", "value", Session, serializer="json")))
    assert "was written by the serializer 'msgpack', and the code has 'json'" in text


def test_another_kind_under_an_old_name_is_refused(files: Files) -> None:
    text = refused(files, wanted(spec("count", "list", int)))
    assert (
        "state 'count' is a value state there and a list state in the code. Give the new one another" in text
    )


def test_other_keys_of_a_map_are_refused_even_with_a_migration(files: Files) -> None:
    other = spec("features", "map", int, int, version=2)
    text = refused(files, wanted(other, migrations={"features": (Migration(1, 2),)}))
    assert "the keys of map 'features' are str there and int in the code, and keys cannot be migrated" in text


def test_another_key_is_refused(files: Files) -> None:
    for columns in ([["user_id", "string"]], [["user_id", "string"], ["day", "timestamp"]]):
        text = refused(files, wanted(COUNT, key=KeyType.from_json(columns)))
        assert "its key is (user_id string, day date), and the code has (user_id string" in text
    assert "and the code has (name string" in refused(
        files, wanted(COUNT, key=KeyType.from_json([["name", "string"], ["day", "date"]]))
    )


def test_another_max_parallelism_is_refused(files: Files) -> None:
    """Case 10: it is fixed at first start."""
    text = refused(files, wanted(COUNT, max_parallelism=64))
    assert "max_parallelism was fixed at 128 when it first started, and the code has 64." in text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (wanted(COUNT, max_parallelism=0), "it must be 1 to 32768"),
        (wanted(dataclasses.replace(COUNT, version=256)), "has version 256, not 1 to 255"),
        (wanted(dataclasses.replace(COUNT, kind="queue")), "of no known kind 'queue'"),
        (wanted(COUNT, migrations={"other": ()}), "migrations for 'other', which is no state"),
        (
            wanted(COUNT, migrations={"count": (Migration(1, 2),)}),
            "does not lead up to its version 1",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_in_an_empty_checkpoint_too(
    asked: SchemaRequest, words: str
) -> None:
    assert words in refused(Files(), asked, StateInvalid)


class Sketch:
    """A class that only a serializer of its own knows."""


def test_a_type_that_only_its_own_serializer_knows_goes_by_its_name(files: Files) -> None:
    own = StateSpec("sketch", "value", (Sketch,), serializer="sketch-1")
    schema = resolve_schema(files, wanted(own))
    assert schema.states["sketch"].versions == {1: ({"other": "Sketch"},)}
    with pytest.raises(StateInvalid, match="Sketch cannot be kept in state"):
        StateSpec("sketch", "value", (Sketch,), serializer="msgpack")
