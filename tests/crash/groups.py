"""Producers and the members of a group through every kill: each message at least once, none after its ack.

Members take messages and then, at random, acknowledge them one by one or up to an offset, say that they
failed, give them back, ask for more time, come too late, or die and leave everything as it is. Producers
number what they send and send it again after a lost answer; some hang up before the answer on purpose.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import tidegate
from tests.crash.cluster import START_SECONDS, Cluster
from tests.crash.door import PAUSE_SECONDS, Crew, Door, RefusedError, UnsureError, doors_of
from tests.crash.history import Fault
from tests.crash.journal import Journal
from tests.crash.ledger import Ledger, Place
from tidegate.errors import Unavailable
from tidegate.sdk._sync.consumer import Consumer
from tidegate.storage.home.home import Home

TOPIC, GROUP, READERS = "crash.work", "workers", "readers"
DEAD = f"{TOPIC}.dead"
PARTITIONS = 3
PRODUCERS = 2
MEMBERS = 4
REQUEST_MESSAGES_MAX = 12
TAKE_MAX = 16
LEASE_MS = 1_500
# Longer than a lease: whoever rests for this comes too late.
LATE_SECONDS = 2.0
WAIT_MS = 200
# Long enough that every kill meets members with messages in work.
WORK_SECONDS_MAX = 0.6
NACK_DELAY_MS_MAX = 400
PAUSE_SECONDS_MAX = 0.3
# A producer hangs up before its answer this often, and sends the same again.
HANG_UP_CHANCE = 0.1
USER = "gina"
PAGE = 5_000
DEEDS = {"ack": 12, "upto": 3, "nack": 3, "release": 2, "extend": 2, "late": 1, "die": 2}


class Member:
    """One member of the group: what it holds is in the ledger that all of them share."""

    def __init__(self, number: int, ledger: Ledger, journal: Journal, door: Door) -> None:
        self._number = number
        self._lives = 0
        self._ledger = ledger
        self._journal = journal
        self._door = door

    @property
    def name(self) -> str:
        """Its name; after a death it comes as somebody else."""
        return f"member-{self._number}.{self._lives}"

    def run(self, crew: Crew, draining: threading.Event, seed: int) -> None:
        """Work until told to stop; once it is draining, everything is done promptly."""
        choice = random.Random(seed)
        while not crew.stopping.is_set():
            taken = self._take(choice.randint(1, TAKE_MAX))
            deed = choice.choices(list(DEEDS), list(DEEDS.values()))[0]
            if taken and not draining.is_set():
                time.sleep(choice.random() * WORK_SECONDS_MAX)
            self._do("ack" if draining.is_set() else deed, taken, choice)

    def _take(self, limit: int) -> dict[str, Place]:
        """Take messages; give the leases."""
        body = {"group": GROUP, "member": self.name, "limit": limit, "waitMs": WAIT_MS, "leaseMs": LEASE_MS}
        sent = self._ledger.tick()
        until = time.monotonic() + LEASE_MS / 1000
        try:
            messages = self._door.post(f"topics/{TOPIC}/consume", body)["messages"]
        except UnsureError:
            # It may have been given what it never saw, and must not acknowledge that with UPTO.
            self._lives += 1
            return {}
        return self._ledger.given(self.name, messages, sent, until)

    def _do(self, deed: str, taken: dict[str, Place], choice: random.Random) -> None:
        if not taken:
            return
        leases = list(taken)
        if deed == "die":
            self._journal.add("died", self.name, holds=len(leases))
            self._lives += 1
        elif deed == "upto":
            self._upto(taken)
        elif deed in ("nack", "release"):
            some = choice.sample(leases, choice.randint(1, len(leases)))
            self._give_back({lease: taken[lease] for lease in some}, choice, release=deed == "release")
            self._ack({lease: place for lease, place in taken.items() if lease not in some})
        else:
            if deed == "extend":
                self._extend(taken)
            elif deed == "late":
                time.sleep(LATE_SECONDS)
            cut = choice.randint(1, len(leases))
            self._ack({lease: taken[lease] for lease in leases[:cut]})
            self._ack({lease: taken[lease] for lease in leases[cut:]})

    def _ack(self, taken: Mapping[str, Place]) -> None:
        if not taken:
            return
        try:
            answer = self._post("ack", {"leases": list(taken)})
        except UnsureError:
            self._ledger.unsure(taken.values())
            return
        except RefusedError as refusal:
            lost = self._lost(refusal, taken)
            done = [place for lease, place in taken.items() if lease not in lost]
            self._acked(done, refusal.details["acked"])
            return
        self._acked(list(taken.values()), answer["acked"])

    def _acked(self, places: list[Place], said: int) -> None:
        self._ledger.acked(self.name, places)
        if said != len(places):
            self._ledger.wrong("an ack says how many it did", f"{said} of {len(places)}", places)

    def _upto(self, taken: dict[str, Place]) -> None:
        """Acknowledge the last of each partition, and with it all before; nobody else's go with them."""
        last: dict[int, int] = {}
        for place in taken.values():
            last[place.partition] = max(place.offset, last.get(place.partition, 0))
        acks = [{"partition": partition, "uptoOffset": offset} for partition, offset in last.items()]
        # What this member was given before, and did not finish, goes with them.
        covered = self._ledger.covered(self.name, last)
        try:
            answer = self._post("ack", {"acks": acks})
        except UnsureError:
            self._ledger.unsure(covered)
            return
        self._journal.add("upto", self.name, acks=acks, acked=answer["acked"])
        self._ledger.acked_upto(self.name, covered, answer["acked"])

    def _give_back(self, taken: Mapping[str, Place], choice: random.Random, *, release: bool) -> None:
        self._ledger.released(self.name, taken.values(), is_counted=not release)
        delay_ms = 0 if release else choice.randint(0, NACK_DELAY_MS_MAX)
        body = {"leases": list(taken), "delayMs": delay_ms, "reason": "at random", "release": release}
        try:
            self._post("nack", body)
        except UnsureError:
            return
        except RefusedError as refusal:
            self._lost(refusal, taken)

    def _extend(self, taken: Mapping[str, Place]) -> None:
        until = time.monotonic() + LEASE_MS / 1000
        try:
            self._post("extend", {"leases": list(taken), "leaseMs": LEASE_MS})
        except UnsureError:
            return
        except RefusedError as refusal:
            lost = self._lost(refusal, taken)
            taken = {lease: place for lease, place in taken.items() if lease not in lost}
        self._ledger.extended(self.name, taken.values(), until)

    def _post(self, verb: str, body: dict[str, object]) -> dict[str, Any]:
        return self._door.post(f"topics/{TOPIC}/{verb}", {"group": GROUP, "member": self.name, **body})

    def _lost(self, refusal: RefusedError, taken: Mapping[str, Place]) -> list[str]:
        if refusal.code != "LEASE_LOST":
            raise refusal
        lost: list[str] = list(refusal.details["leases"])
        self._ledger.told_lost(self.name, [taken[lease] for lease in lost])
        return lost


class GroupWork:
    """Producers with numbers, and members of one group who work, fail, come late and die.

    Promises: the topic holds exactly what was acknowledged to the producers, each once, however often it was
    sent; every message is given to a member and acknowledged, or is among the dead letters; none is given
    again after its ack was answered; none is given to two at a time; each delivery has a number of its own;
    a consumer of the SDK, in a group of its own, is given every message as well.
    """

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._seed = seed
        self._producing, self._working = Crew(), Crew()
        self._draining = threading.Event()
        self._ledger = Ledger(journal)
        self._doors: list[Door] = []
        self._token = ""
        self._home: Home | None = None
        self.stored: dict[Place, str] = {}
        # What came through the SDK's consumer, in a group of its own.
        self.read: set[Place] = set()

    @property
    def acknowledged_count(self) -> int:
        """How many messages were acknowledged by members."""
        return self._ledger.acked_count

    def prepare(self, cluster: Cluster) -> None:
        """Make a user and the topic."""
        self._doors = [doors_of(cluster, [USER])[USER]]
        self._home = Home(cluster.home)
        with cluster.client() as client:
            client.topics.create(TOPIC, partitions=PARTITIONS)
            self._token = client.users.make_token(USER)["token"]
        self._doors += [Door(cluster.home, self._token) for _ in range(PRODUCERS + MEMBERS)]

    def start(self, cluster: Cluster) -> None:
        """Begin, and go on through every kill."""
        doors = iter(self._doors[1:])
        for number in range(PRODUCERS):
            self._producing.start(self._produce, number, next(doors))
        for number in range(MEMBERS):
            member = Member(number, self._ledger, self._journal, next(doors))
            self._working.start(member.run, self._working, self._draining, self._seed * 1000 + 500 + number)
        self._working.start(self._read, cluster)

    def finish(self) -> None:
        """Let the producers end, and the members work until nothing is left."""
        self._producing.finish()
        self._draining.set()
        deadline = time.monotonic() + START_SECONDS
        while self._is_behind() and not self._working.stopping.is_set():
            assert time.monotonic() < deadline, f"{self._lag()} messages were never acknowledged"
            time.sleep(0.1)
        self._working.finish()

    def drained(self, client: tidegate.Client) -> bool:  # noqa: ARG002 - finish() has waited for it
        """Everything is acknowledged."""
        return True

    def verify(self, cluster: Cluster) -> list[Fault]:  # noqa: ARG002 - the doors know where
        """Compare topic, deliveries and acknowledgements."""
        topic = self._messages(TOPIC)
        found = {Place(row["partition"], row["offset"]): row["payload"]["subject"] for row in topic}
        dead = {
            Place(row["payload"]["origin"]["partition"], row["payload"]["origin"]["offset"])
            for row in self._messages(DEAD, may_be_missing=True)
        }
        faults = [*self._stored_faults(found), *self._ledger.faults(set(found), dead)]
        if unread := tuple(name for place, name in found.items() if place not in self.read):
            promise = "a consumer of the SDK is given every message"
            faults.append(Fault(promise, f"{len(unread)} were not", unread))
        if lag := self._lag():
            faults.append(Fault("what was acknowledged stays so", f"{lag} messages are to be done again"))
        return faults

    def _stored_faults(self, found: Mapping[Place, str]) -> list[Fault]:
        promise = "a message that is sent again is stored once, where it was said to be"
        wrong = [name for place, name in self.stored.items() if found.get(place) != name]
        twice = len(found) - len(set(found.values()))
        extra = [name for place, name in found.items() if place not in self.stored]
        faults = []
        if wrong or extra:
            told = f"{len(wrong)} missing or elsewhere, {len(extra)} too many"
            faults.append(Fault(promise, told, tuple(wrong + extra)))
        if twice:
            faults.append(Fault(promise, f"{twice} are there twice"))
        return faults

    def _produce(self, number: int, door: Door) -> None:
        choice = random.Random(self._seed * 1000 + 400 + number)
        producer, sequence = f"maker-{number}", 0
        while not self._producing.stopping.is_set():
            count = choice.randint(1, REQUEST_MESSAGES_MAX)
            names = [f"{producer}/{sequence + index}" for index in range(count)]
            messages = [{"key": choice.choice("abcdefgh"), "payload": {"subject": name}} for name in names]
            body = {"messages": messages, "producerId": producer, "sequence": sequence}
            self._journal.add("sent", names[0], count=count)
            if choice.random() < HANG_UP_CHANCE:
                self._hang_up(body)
            for name, place in zip(names, self._sent(door, body), strict=True):
                self.stored[Place(place["partition"], place["offset"])] = name
                self._journal.add("stored", name, partition=place["partition"], offset=place["offset"])
            sequence += count
            time.sleep(choice.random() * PAUSE_SECONDS_MAX)

    def _sent(self, door: Door, body: Mapping[str, object]) -> list[dict[str, Any]]:
        places: list[dict[str, Any]] = door.repeat(f"topics/{TOPIC}/publish", body)["offsets"]
        return places

    def _hang_up(self, body: Mapping[str, object]) -> None:
        """Send a publish, and be gone before the answer."""
        address = self._home.server_address() if self._home else None
        content = json.dumps(body).encode()
        head = (
            f"POST /api/v1/topics/{TOPIC}/publish HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        ).encode()
        if address is None:
            return
        place = urlsplit(address.url)
        try:
            with socket.create_connection((str(place.hostname), place.port or 0), timeout=5) as connection:
                connection.sendall(head + content)
        except OSError:
            return  # no server there just now
        self._journal.add("hung up", str(body["producerId"]), sequence=body["sequence"])

    def _read(self, cluster: Cluster) -> None:
        """Read with the SDK's consumer; after a kill the server is elsewhere, so that it takes a new one."""
        while not self._working.stopping.is_set():
            try:
                with (
                    cluster.client() as client,
                    client.topic(TOPIC).consumer(READERS, wait_ms=WAIT_MS) as reader,
                ):
                    stopper = threading.Thread(target=self._stop_with, args=(reader,), daemon=True)
                    stopper.start()
                    for message in reader:
                        self.read.add(Place(message["partition"], message["offset"]))
            except Unavailable as problem:
                self._journal.add("failed", READERS, error=problem.code)
                time.sleep(PAUSE_SECONDS)

    def _stop_with(self, reader: Consumer) -> None:
        self._working.stopping.wait()
        reader.stop()

    def _is_behind(self) -> bool:
        """Return whether a group has something left.

        One that never came to its first message has everything.
        """
        sql = "SELECT count(*) FROM system.topic_groups WHERE topic = ?"
        return int(self._doors[0].read(sql, [TOPIC])["rows"][0][0]) < len((GROUP, READERS)) or self._lag() > 0

    def _lag(self) -> int:
        sql = "SELECT coalesce(sum(lag), 0) FROM system.topic_groups WHERE topic = ?"
        return int(self._doors[0].read(sql, [TOPIC])["rows"][0][0])

    def _messages(self, topic: str, *, may_be_missing: bool = False) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        start: object = "earliest"
        while True:
            try:
                page = self._doors[0].repeat(f"topics/{topic}/consume", {"from": start, "limit": PAGE})
            except RefusedError as refusal:
                if may_be_missing and refusal.code == "TOPIC_NOT_FOUND":
                    return []
                raise
            rows += page["messages"]
            if not page["messages"]:
                return rows
            start = {"offsets": page["nextOffsets"]}
