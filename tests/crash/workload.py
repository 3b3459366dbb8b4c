"""What runs while processes are killed, and how it is checked. A new noun plugs in as one more workload."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import deltalake

import tidegate
from tests.crash.cluster import START_SECONDS, Cluster
from tests.crash.history import Fault
from tests.crash.journal import Journal
from tidegate.errors import Unavailable

TOPIC = "crash.events"
TABLE = "crash"
PARTITIONS = 3
PRODUCERS = 3
DEDUP_SECONDS = 86_400  # longer than any run
REQUEST_MESSAGES_MAX = 40
PAGE = 10_000

PIPELINE = f'''
from tidegate import spark as tide


@tide.pipeline(name="crash")
def crash(ctx):
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "{TOPIC}").load()
    return rows.writeStream.format("delta").option("path", ctx.lake("{TABLE}"))
'''


class Workload(Protocol):
    """Load on a cluster that can be checked."""

    @property
    def acknowledged_count(self) -> int:
        """How much was acknowledged; nothing much says that there was no load."""
        ...

    def prepare(self, cluster: Cluster) -> None:
        """Make what it needs; the cluster is whole."""
        ...

    def start(self, cluster: Cluster) -> None:
        """Begin, and go on through every kill."""
        ...

    def finish(self) -> None:
        """Stop sending, once everything that was begun is acknowledged."""
        ...

    def drained(self, client: tidegate.Client) -> bool:
        """Return whether everything that was acknowledged has arrived wherever it goes."""
        ...

    def verify(self, cluster: Cluster) -> list[Fault]:
        """Compare what is there with what was acknowledged."""
        ...


class TopicToLake:
    """Producers that send each request until it is acknowledged, and a pipeline that carries all to the lake.

    One of them numbers nothing: its messages have dedup keys. It sends some again that were acknowledged,
    under other keys.

    Promises: the topic holds exactly the acknowledged messages, each once, at the place that was
    acknowledged, also of those that were sent again; what a reader has seen stays; the Delta table holds
    exactly the topic's messages, each once.
    """

    topic = TOPIC
    pipeline = PIPELINE
    file_name = "crash.py"

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._seed = seed
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        # Subject → (partition, offset, message id), as acknowledged.
        self.acknowledged: dict[str, tuple[int, int, str]] = {}
        self.seen: dict[tuple[int, int], str] = {}
        self._crashed: list[BaseException] = []
        self._repeats: list[Fault] = []

    @property
    def acknowledged_count(self) -> int:
        """How many messages were acknowledged."""
        return len(self.acknowledged)

    def prepare(self, cluster: Cluster) -> None:
        """Make the topic and start the pipeline."""
        with cluster.client() as client:
            client.topics.create(self.topic, partitions=PARTITIONS, dedup_seconds=DEDUP_SECONDS)
        (cluster.home / "pipelines" / self.file_name).write_text(self.pipeline)

    def start(self, cluster: Cluster) -> None:
        """Start producers and a reader."""
        bodies: list[tuple[Any, tuple[Any, ...]]] = [
            *((self._produce, (cluster, number)) for number in range(PRODUCERS)),
            (self._produce_by_key, (cluster, PRODUCERS)),
            (self._watch, (cluster,)),
        ]
        for target, arguments in bodies:
            thread = threading.Thread(target=self._guard, args=(target, arguments), daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """Let every producer end its last request."""
        self._stop.set()
        for thread in self._threads:
            thread.join(START_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a request was never acknowledged"
        if self._crashed:
            raise self._crashed[0]

    def drained(self, client: tidegate.Client) -> bool:
        """The lake has as many rows as were acknowledged, or more."""
        rows = client.sql(f"SELECT count(*) FROM lake.{TABLE}").rows
        return int(rows[0][0]) >= len(self.acknowledged)

    def verify(self, cluster: Cluster) -> list[Fault]:
        """Compare acknowledgements, topic and table, both ways."""
        topic, faults = self.topic_faults(cluster)
        table = _table_rows(cluster)
        return [
            *faults,
            *differences("the Delta table holds the topic's messages", topic, dict(table)),
            *doubles("each message is in the Delta table once", table),
        ]

    def topic_faults(self, cluster: Cluster) -> tuple[dict[tuple[int, int], str], list[Fault]]:
        """Return the messages of the topic, and where they are not as acknowledged and seen."""
        with cluster.client() as client:
            topic = dict(topic_rows(client, self.topic))
        expected = {(p, o): subject for subject, (p, o, _) in self.acknowledged.items()}
        promise = "acknowledged messages are in the topic, where they were said to be"
        return topic, [
            *differences(promise, expected, topic),
            *differences("what a reader saw stays as it was", self.seen, topic, whole=False),
            *self._wrong_ids(),
            *self._repeats,
        ]

    def _wrong_ids(self) -> list[Fault]:
        ids = [message_id for _, _, message_id in self.acknowledged.values()]
        if len(set(ids)) == len(ids):
            return []
        return [Fault("message ids are unique", f"{len(ids) - len(set(ids))} repeated")]

    def _guard(self, target: Any, arguments: tuple[Any, ...]) -> None:
        try:
            target(*arguments)
        except BaseException as problem:  # noqa: BLE001 - told by finish()
            self._crashed.append(problem)
            self._stop.set()

    def _produce(self, cluster: Cluster, number: int) -> None:
        choice = random.Random(self._seed * 1000 + number)
        producer = f"producer-{number}"
        sequence = 0
        while not self._stop.is_set():
            count = choice.randint(1, REQUEST_MESSAGES_MAX)
            subjects = [f"{producer}/{sequence + index}" for index in range(count)]
            messages = [{"key": choice.choice("abcdefgh"), "payload": {"subject": name}} for name in subjects]
            places = self._send(cluster, messages, producer, sequence)
            for name, place in zip(subjects, places, strict=True):
                self.acknowledged[name] = (place["partition"], place["offset"], place["messageId"])
                self._journal.add("acked", name, partition=place["partition"], offset=place["offset"])
            sequence += count
            time.sleep(choice.random() * 0.02)

    def _produce_by_key(self, cluster: Cluster, number: int) -> None:
        choice = random.Random(self._seed * 1000 + number)
        sequence = 0
        while not self._stop.is_set():
            count = choice.randint(1, REQUEST_MESSAGES_MAX)
            subjects = [f"keyed-{number}/{sequence + index}" for index in range(count)]
            places = self._send_keyed(cluster, choice, subjects)
            flags = {bool(place.get("duplicate")) for place in places}
            if len(flags) > 1:
                told = f"{places} of one request"
                self._repeats.append(Fault("a request is stored whole or not at all", told, tuple(subjects)))
            for name, place in zip(subjects, places, strict=True):
                self.acknowledged[name] = (place["partition"], place["offset"], place["messageId"])
                self._journal.add("acked", name, partition=place["partition"], offset=place["offset"])
            again = choice.sample(list(self._keyed_names(number)), min(10, count))
            self._repeats += repeat_faults(self.acknowledged, again, self._send_keyed(cluster, choice, again))
            sequence += count
            time.sleep(choice.random() * 0.02)

    def _keyed_names(self, number: int) -> list[str]:
        return [name for name in self.acknowledged.copy() if name.startswith(f"keyed-{number}/")]

    def _send_keyed(self, cluster: Cluster, choice: random.Random, names: list[str]) -> list[dict[str, Any]]:
        """Send messages whose dedup keys are their names, under any key, until they are acknowledged."""
        messages = [
            {"key": choice.choice("abcdefgh"), "payload": {"subject": name}, "dedupKey": name}
            for name in names
        ]
        return self._send(cluster, messages, None, None)

    def _send(
        self, cluster: Cluster, messages: list[dict[str, Any]], producer: str | None, sequence: int | None
    ) -> list[dict[str, Any]]:
        first = messages[0]["payload"]["subject"]
        while True:
            self._journal.add("sent", first, count=len(messages))
            try:
                with cluster.client() as client:
                    places = client.topic(self.topic).publish(
                        messages, producer_id=producer, sequence=sequence
                    )
                    return [dict(place) for place in places]
            except Unavailable as problem:
                self._journal.add("failed", first, error=problem.code)
                time.sleep(0.05)

    def _watch(self, cluster: Cluster) -> None:
        position: dict[str, int] = {str(number): 0 for number in range(PARTITIONS)}
        while not self._stop.is_set():
            with contextlib.suppress(Unavailable), cluster.client() as client:
                answer = client.topic(self.topic).consume({"offsets": position}, limit=1000, wait_ms=200)
                for message in answer["messages"]:
                    self.seen[message["partition"], message["offset"]] = message["payload"]["subject"]
                position = answer["nextOffsets"]


def repeat_faults(
    acknowledged: Mapping[str, tuple[int, int, str]], names: Sequence[str], places: Sequence[dict[str, Any]]
) -> list[Fault]:
    """Find messages that were stored again, or whose first one is said to be where it is not."""
    wrong = tuple(
        name
        for name, place in zip(names, places, strict=True)
        if not place.get("duplicate")
        or acknowledged[name] != (place["partition"], place["offset"], place["messageId"])
    )
    promise = "what has a known dedup key is dropped, and told where the first one is"
    return [Fault(promise, f"{len(wrong)} were not, such as {places[0]}", wrong)] if wrong else []


def topic_rows(client: tidegate.Client, topic: str) -> list[tuple[tuple[int, int], str]]:
    """Return the place and the subject of every message of a topic."""
    rows: list[tuple[tuple[int, int], str]] = []
    position: str | dict[str, Any] = "earliest"
    while True:
        answer = client.topic(topic).consume(position, limit=PAGE)
        for message in answer["messages"]:
            rows.append(((message["partition"], message["offset"]), message["payload"]["subject"]))
        if not answer["messages"]:
            return rows
        position = {"offsets": answer["nextOffsets"]}


def _table_rows(cluster: Cluster) -> list[tuple[tuple[int, int], str]]:
    import msgspec

    table = deltalake.DeltaTable(str(cluster.home / "lake" / TABLE)).to_pyarrow_table(
        columns=["partition", "offset", "payload"]
    )
    columns = table.to_pydict()
    return [
        ((partition, offset), msgspec.json.decode(payload)["subject"])
        for partition, offset, payload in zip(
            columns["partition"], columns["offset"], columns["payload"], strict=True
        )
    ]


def differences(
    promise: str,
    expected: dict[tuple[int, int], str],
    found: dict[tuple[int, int], str],
    *,
    whole: bool = True,
) -> list[Fault]:
    """Find messages that are not where they should be, or (`whole`) are there and should not be."""
    faults = []
    missing = {place: name for place, name in expected.items() if found.get(place) != name}
    if missing:
        shown = [
            f"{name} at {place}, there is {found.get(place)}" for place, name in list(missing.items())[:5]
        ]
        faults.append(
            Fault(promise, f"{len(missing)} missing or different: {shown}", tuple(missing.values()))
        )
    extra = {place: name for place, name in found.items() if place not in expected} if whole else {}
    if extra:
        shown = [f"{name} at {place}" for place, name in list(extra.items())[:5]]
        faults.append(Fault(promise, f"{len(extra)} too many: {shown}", tuple(extra.values())))
    return faults


def doubles(promise: str, rows: list[tuple[tuple[int, int], str]]) -> list[Fault]:
    """Find subjects that are there more than once."""
    counted: dict[str, int] = {}
    for _, name in rows:
        counted[name] = counted.get(name, 0) + 1
    doubled = tuple(name for name, count in counted.items() if count > 1)
    return [Fault(promise, f"{len(doubled)} more than once", doubled)] if doubled else []
