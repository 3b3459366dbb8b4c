"""Any history of statements in groups, alters, indexes, drops and restarts gives what a dictionary gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.test_engine import open_engine
from tests.tables.bench import Bench, build, column, wire
from tidegate.errors import RowExists, TidegateError
from tidegate.model.tables import Row, Table, TableKind
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.tables import keys
from tidegate.tables.access_paths import IndexSpan, KeySpan
from tidegate.tables.store import WriteResult

USERS = {"mine": ("alice", "al"), "ours": ("",)}
TEXTS = ["", "a", "a\x00", "b", None]
COLUMNS = column("k", "TEXT"), column("n", "INT"), column("text", "TEXT")

places = st.sampled_from([(name, user) for name, users in USERS.items() for user in users])
cells = st.tuples(
    st.sampled_from(["", "a", "b"]), st.integers(-1, 1), st.sampled_from(TEXTS), st.none() | st.integers(0, 2)
)
statement = st.one_of(
    st.tuples(st.just("insert"), places, st.lists(cells, min_size=1, max_size=4)),
    st.tuples(st.just("upsert"), places, st.lists(cells, min_size=1, max_size=4)),
    st.tuples(st.just("update"), places, st.tuples(cells, cells)),
    st.tuples(st.just("delete"), places, cells),
    st.tuples(
        st.just("edits"), places, st.lists(st.tuples(st.integers(0, 9), st.none() | cells), max_size=4)
    ),
)
tables = st.sampled_from(list(USERS))
group = st.tuples(st.just("group"), st.lists(statement, min_size=2, max_size=6))
# Groups are what most steps are.
step = st.one_of(
    *[group] * 5,
    st.tuples(st.just("index"), tables),
    st.tuples(st.just("fill"), tables),
    st.tuples(st.just("unindex"), tables),
    st.tuples(st.just("widen"), tables),
    st.tuples(st.just("drop"), tables),
    st.tuples(st.just("restart"), st.none()),
)
Held = dict[tuple[Any, ...], Row]


@dataclass
class World:
    """The store, and what it must hold."""

    bench: Bench
    tables: dict[str, Table]
    held: dict[tuple[str, str], Held] = field(default_factory=dict)

    def rows(self, place: tuple[str, str]) -> Held:
        return self.held.setdefault(place, {})

    def forget(self, name: str) -> None:
        for user in USERS[name]:
            self.held[name, user] = {}

    def fit(self, name: str, given_row: Row) -> Row:
        """Return a row as wide as the table is now."""
        return given_row[: len(self.tables[name].columns)]

    def renew(self) -> None:
        for name, table in self.tables.items():
            self.tables[name] = self.bench.directory.get("default", "app", name)
            assert self.tables[name].id == table.id


def put_all(held: Held, rows: list[Row], *, upsert: bool) -> int | None:
    """Insert into the dictionary; None when a key is there already, and then nothing is."""
    fresh = {row[:2]: row for row in rows}
    if not upsert and (len(fresh) < len(rows) or held.keys() & fresh.keys()):
        return None
    held.update(fresh)
    return len(fresh)


def edit_all(held: Held, edits: list[tuple[Row, Row | None]]) -> int | str | None:
    """Edit the dictionary; 'stale' when a row is not as it was, None when a key is taken."""
    if any(held.get(old[:2]) != old for old, _ in edits):
        return "stale"
    rest = {key: row for key, row in held.items() if key not in {old[:2] for old, _ in edits}}
    news = [new for _, new in edits if new is not None]
    if len({new[:2] for new in news}) < len(news) or any(new[:2] in rest for new in news):
        return None
    held.clear()
    held.update(rest)
    held.update({new[:2]: new for new in news})
    return len(edits)


def plan(
    world: World, what: tuple[str, tuple[str, str], Any]
) -> tuple[Callable[[Staging], Any], Callable[[], Any]]:
    """Return a statement for the store, and the same for the dictionary."""
    verb, place, given_value = what
    (name, user), held = place, world.rows(place)
    table, store = world.tables[name], world.bench.store
    wants: dict[str, Any] = {"wants_changes": True}
    if verb in ("insert", "upsert"):
        rows, upsert = [world.fit(name, row) for row in given_value], verb == "upsert"
        return (
            lambda staging: store.stage_insert(staging, table, user, rows, upsert=upsert, **wants),
            lambda: put_all(held, rows, upsert=upsert),
        )
    if verb == "update":
        key, new = given_value[0][:2], world.fit(name, given_value[1])
        return (
            lambda staging: store.stage_update_key(staging, table, user, key, lambda _: new, **wants),
            lambda: edit_all(held, [(held[key], new)]) if key in held else 0,
        )
    if verb == "delete":
        key = given_value[:2]
        return (
            lambda staging: store.stage_delete_key(staging, table, user, key, **wants),
            lambda: edit_all(held, [(held[key], None)]) if key in held else 0,
        )
    # Edits of rows as they are before the group begins: another statement of it may change them first.
    there = sorted(held.values(), key=repr)
    chosen = {at % len(there): new for at, new in given_value} if there else {}
    edits = [(there[at], None if new is None else world.fit(name, new)) for at, new in chosen.items()]
    return (
        lambda staging: store.stage_edits(staging, table, user, edits, **wants),
        lambda: edit_all(held, edits),
    )


def run_group(world: World, statements: list[Any]) -> None:
    plans = [plan(world, what) for what in statements]
    befores = [{place: dict(rows) for place, rows in world.held.items()}]
    answers = world.bench.run_together(*(stage for stage, _ in plans))
    for what, answer, (_, expect) in zip(statements, answers, plans, strict=True):
        expected = expect()
        befores.append({place: dict(rows) for place, rows in world.held.items()})
        if expected is None:
            assert isinstance(answer, RowExists), what
        elif expected == "stale":
            assert answer is None, what
        else:
            assert isinstance(answer, WriteResult), (what, answer)
            assert answer.count == expected, what
            check_changes(answer, befores[-2].get(what[1], {}), befores[-1][what[1]])


def check_changes(answer: WriteResult, before: Held, after: Held) -> None:
    """Make the changes one by one: they lead from what was there to what is there."""
    now = dict(before)
    for op, old, new in answer.changes:
        if old is not None:
            assert now.pop(old[:2]) == old
        if new is not None:
            assert new[:2] not in now
            now[new[:2]] = new
        assert op == ("insert" if old is None else "delete" if new is None else "update")
    assert now == after


def make_step(world: World, name: str, which: str) -> None:
    bench, table = world.bench, world.tables[which]
    directory = bench.directory
    try:
        if name == "index":
            bench.run(lambda staging: directory.stage_add_index(staging, table, "by", ("text", "n")))
        elif name == "fill" and table.indexes:
            bench.fill(table, table.indexes[0].id)
        elif name == "unindex":
            bench.run(lambda staging: directory.stage_drop_index(staging, table, "by"))
        elif name == "widen" and len(table.columns) == len(COLUMNS):
            more = column("more", "INT", missing=1)
            bench.run(lambda staging: directory.stage_add_column(staging, table, more))
            for user in USERS[which]:
                held = world.rows((which, user))
                held.update({key: (*row, 1) for key, row in held.items()})
        elif name == "drop":
            bench.run(lambda staging: directory.stage_drop(staging, table))
            world.tables[which] = create(bench, which)
            world.forget(which)
    except TidegateError as problem:
        assert problem.code in ("INDEX_EXISTS", "INDEX_NOT_FOUND")
    world.renew()


def create(bench: Bench, name: str) -> Table:
    kind = TableKind.USER if name == "mine" else TableKind.SHARED
    return bench.create(*COLUMNS, key=("k", "n"), kind=kind, name=name)


def begin(world: World) -> None:
    """Let there be indexes and rows from the start, so that even short histories meet them."""
    rows: list[Row] = [("a", 0, "a", 1), ("a", 1, None, 2), ("b", -1, "a", None), ("b", 0, "b", 0)]
    for name, users in USERS.items():
        world.tables[name] = world.bench.index(world.tables[name], "text", "n")
        for user in users:
            run_group(world, [("insert", (name, user), rows)])


def check_world(world: World) -> None:
    bench = world.bench
    for name, table in world.tables.items():
        for user in USERS[name]:
            held = world.rows((name, user))
            rows = [held[key] for key in sorted(held)]
            assert bench.rows(table, user) == rows
            assert bench.rows(table, user, KeySpan(("a",), 0)) == [
                row
                for row in rows
                if row[0] == "a" and row[1] >= 0  # type: ignore[operator]
            ]
            for text in TEXTS if table.indexes else ():
                wanted = [row for row in rows if row[2] == text and text is not None]
                found = bench.rows(table, user, IndexSpan("by", (text,)))
                assert sorted(found, key=repr) == sorted(wanted, key=repr)
        counts = bench.store.counts(table)
        assert counts == bench.measured(table)
        assert counts.rows == sum(len(world.rows((name, user))) for user in USERS[name])
        for index in table.indexes:
            entries = list(bench.engine.scan(keys.index_range(table.id, index.id)))
            assert len(entries) == counts.rows if index.ready else len(entries) <= counts.rows


def restart(world: World, kind: str, folder: Path) -> None:
    engine = world.bench.engine
    world.bench.committer.close()
    if isinstance(engine, MemoryEngine):
        engine.crash()
        world.bench = wire(engine)
    else:
        engine.close()
        world.bench = wire(open_engine(kind, folder))
    world.renew()


def check_steps(kind: str, steps: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        bench = build(kind, Path(folder))
        world = World(bench, {name: create(bench, name) for name in USERS})
        begin(world)
        try:
            for name, what in steps:
                if name == "group":
                    run_group(world, what)
                elif name == "restart":
                    restart(world, kind, Path(folder))
                else:
                    make_step(world, name, what)
                check_world(world)
        finally:
            world.bench.close()


# RocksDB takes a while to open; what the statements do is the same on both.
@settings(max_examples=80, deadline=None)
@given(steps=st.lists(step, max_size=12))
def test_any_history_in_memory_matches_a_dictionary(steps: list[tuple[str, Any]]) -> None:
    check_steps("memory", steps)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(step, max_size=12))
def test_any_history_on_disk_matches_a_dictionary(steps: list[tuple[str, Any]]) -> None:
    check_steps("rocks", steps)
