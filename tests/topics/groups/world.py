"""Groups beside their reference: each act is done to both, and they must agree."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.topics.groups.bench import ALICE, ROOT, leases, offsets
from tests.topics.groups.checks import check
from tests.topics.groups.failing_disk import LIMITS, Act, Ground
from tests.topics.groups.reference import Message, Partition, Reference
from tidegate.model.access import Principal
from tidegate.topics.groups.leases import lease_id, read_leases
from tidegate.topics.groups.types import AckRequest, ExtendRequest, FetchRequest, FetchResult, NackRequest
from tidegate.topics.log.reader import Start

DRAIN_ROUNDS_MAX = 40


class World(Ground):
    """A topic with groups, and what the reference knows of them."""

    # Acts on groups, gathered

    def take(
        self, group: str, member: str, limit: int, number: int | None, start: str, user: Principal = ALICE
    ) -> None:
        topic = self.topic
        if number is not None:
            number %= topic.partitions
        kind: Any = start
        chosen = range(topic.partitions) if number is None else [number]
        # From offset 0, which may be gone from the log.
        offsets = dict.fromkeys(chosen, 0) if kind == "offsets" else {}
        asked = FetchRequest(group, member, user.qualified_name, Start(kind, offsets=offsets), number, limit)
        self.acts.append(
            Act(
                lambda s: self.bench.groups.stage_fetch(s, topic, asked),
                lambda given: self._took(asked, chosen, given),
            )
        )
        self._end_if_deadly(group)

    def _took(self, asked: FetchRequest, chosen: Any, given: FetchResult) -> None:
        reference = self.known.setdefault(asked.group, Reference(LIMITS.deliveries_max, LIMITS.in_flight_max))
        now_us, logs = self.steady_us, {number: self.log(number) for number in chosen}
        for number in chosen:
            begin = {"earliest": logs[number][0], "latest": logs[number][1]}.get(asked.start.kind, 0)
            part = reference.partitions.setdefault(number, Partition(begin))
            part.settle(logs[number][0], now_us)
        missed = {n: reference.partitions[n].untold for n in chosen if reference.partitions[n].untold}
        assert given.missed == missed
        found = {number: reference.available(number, logs[number], now_us) for number in chosen}
        doomed = sum(len(reference.doomed(number, now_us)) for number in chosen)
        total = sum(len(due) + new for due, new in found.values())
        count = len(offsets(given))
        assert count <= asked.limit
        assert count == min(asked.limit, total) or (doomed and count < min(asked.limit, total))
        for number in chosen:
            part = reference.partitions[number]
            part.untold = 0
            mine = [grant for grant in given.ranges if grant.partition == number]
            got = [offset for grant in mine for offset in range(grant.start, grant.stop)]
            due, new = found[number]
            again = [offset for offset in got if offset < part.next]
            assert again == due[: len(again)], "what is due again comes first, lowest first"
            fresh = got[len(again) :]
            assert fresh == list(range(part.next, part.next + len(fresh)))
            assert len(fresh) <= new
            assert not fresh or len(again) == len(due)
            part.next += len(fresh)
            assert given.next_offsets[number] == part.next
            for grant in mine:
                for offset in range(grant.start, grant.stop):
                    before = part.given.get(offset)
                    assert grant.deliveries == (before.deliveries if before else 0) + 1
                    text = lease_id(number, grant.fetch_id, grant.token, offset)
                    ends_us = now_us + LIMITS.lease_ms_default * 1000
                    holder = (asked.member, asked.user)
                    part.given[offset] = Message(grant.deliveries, text, ends_us, True, *holder)
        self.leases[asked.group] += leases(given)

    def ack(self, group: str, texts: list[str], member: str | None = None, user: Principal = ROOT) -> None:
        if group not in self.known:
            return
        topic, asked = self.topic, AckRequest(group, member, user, texts)

        def mirror(done: Any) -> None:
            held = self._held(group, texts, member)
            for number, offset in held.values():
                part = self.known[group].partitions[number]
                del part.given[offset]
                part.acked.add(offset)
            assert done.acked == len(held)
            counts = Counter(number for number, _ in held.values())
            assert done.by_partition == {number: counts[number] for number in done.position}
            assert sorted(done.lost) == sorted(set(texts) - held.keys())
            for number, at in done.position.items():
                part = self.known[group].partitions[number]
                assert at == part.position(self.log(number)[0], self.steady_us)

        self._act(lambda s: self.bench.groups.stage_ack(s, topic, asked), mirror, asked, texts)

    def upto(self, group: str, member: str, number: int, part: float, user: Principal = ROOT) -> None:
        number %= self.topic.partitions
        if group not in self.known or not self.log(number)[1]:
            return
        topic, offset = self.topic, int((self.log(number)[1] - 1) * part)
        asked = AckRequest(group, member, user, upto={number: offset})

        def named() -> list[tuple[int, Message]]:
            mine = self.known[group].partitions.get(number)
            given = mine.given.items() if mine else ()
            return [(o, m) for o, m in given if o <= offset and m.member == member]

        def is_own(message: Message) -> bool:
            if user is ROOT:
                return True
            return member == user.user if message.user is None else message.user == user.qualified_name

        def refused() -> bool:
            found = [message for _, message in named()]
            return any(m.user is not None for m in found) and not any(is_own(m) for m in found)

        def mirror(done: Any) -> None:
            mine = self.known[group].partitions.get(number)
            if mine is None:
                assert done.acked == 0
                return
            acked = [o for o, m in named() if is_own(m)]
            for one in acked:
                del mine.given[one]
                mine.acked.add(one)
            assert done.acked == len(acked)

        self.acts.append(Act(lambda s: self.bench.groups.stage_ack(s, topic, asked), mirror, refused))

    def nack(
        self,
        group: str,
        texts: list[str],
        delay_ms: int,
        kind: str,
        member: str | None,
        user: Principal = ROOT,
    ) -> None:
        if group not in self.known:
            return
        topic = self.topic
        how = (delay_ms, "it broke", kind == "release", kind == "dead")
        asked = NackRequest(group, member, user, texts, *how)

        def mirror(done: Any) -> None:
            held = self._held(group, texts, member)
            dead = 0
            for number, offset in held.values():
                part = self.known[group].partitions[number]
                message = part.given[offset]
                message.held, message.member, message.user = False, None, None
                if kind == "release":
                    message.deliveries -= 1
                    message.ends_us = self.steady_us
                elif kind == "dead" or message.deliveries >= LIMITS.deliveries_max:
                    del part.given[offset]
                    if offset < self.log(number)[0]:
                        part.untold += 1
                        part.missed += 1
                    else:
                        part.dead[offset] += 1
                        dead += 1
                else:
                    message.ends_us = self.steady_us + delay_ms * 1000
            assert (done.nacked, done.dead) == (len(held), dead)
            assert sorted(done.lost) == sorted(set(texts) - held.keys())

        self._act(lambda s: self.bench.groups.stage_nack(s, topic, asked), mirror, asked, texts)

    def extend(
        self, group: str, texts: list[str], lease_ms: int, member: str | None, user: Principal = ROOT
    ) -> None:
        if group not in self.known:
            return
        topic, asked = self.topic, ExtendRequest(group, member, user, texts, lease_ms)

        def mirror(done: Any) -> None:
            held = self._held(group, texts, member)
            for number, offset in held.values():
                message = self.known[group].partitions[number].given[offset]
                message.ends_us = self.steady_us + lease_ms * 1000
                message.user = message.user or user.qualified_name
            assert done.extended == len(held)
            assert sorted(done.lost) == sorted(set(texts) - held.keys())

        self._act(lambda s: self.bench.groups.stage_extend(s, topic, asked), mirror, asked, texts)

    def _act(self, stage: Any, mirror: Any, asked: Any, texts: list[str]) -> None:
        """Note an act on leases: it is refused where one of them is another user's."""

        def refused() -> bool:
            held = self._held(asked.group, texts, asked.member).values()
            users = {self.known[asked.group].partitions[number].given[o].user for number, o in held}
            return asked.principal is not ROOT and not users <= {None, asked.principal.qualified_name}

        self.acts.append(Act(stage, mirror, refused))

    def expire(self, group: str) -> None:
        if group in self.known:
            topic = self.topic
            self.acts.append(
                Act(lambda s: self.bench.groups.stage_expire(s, topic, group), lambda _: self._expired(group))
            )
            self._end_if_deadly(group)

    def _end_if_deadly(self, group: str) -> None:
        """Commit now where messages may become dead letters: acts after it must know which did."""
        reference = self.known.get(group)
        if reference and any(reference.doomed(number, self.steady_us) for number in reference.partitions):
            self.commit()

    def reset(self, group: str, to: str, number: int | None) -> None:
        if group not in self.known:
            return
        topic, kind = self.topic, to
        if number is not None:
            number %= topic.partitions
        start: Any = Start(kind)  # type: ignore[arg-type]

        def mirror(targets: dict[int, int]) -> None:
            self.was_reset = True
            for at, offset in targets.items():
                assert offset == self.log(at)[kind == "latest"]
                part = self.known[group].partitions.setdefault(at, Partition(offset))
                part.next, part.untold = offset, 0
                part.given.clear()
                part.acked.clear()

        self.acts.append(Act(lambda s: self.bench.groups.stage_reset(s, topic, group, start, number), mirror))

    def delete(self, group: str) -> None:
        self.commit()
        if group in self.known:
            self.bench.delete_group(self.topic, group)
            del self.known[group]

    def _held(self, group: str, texts: list[str], member: str | None) -> dict[str, tuple[int, int]]:
        """Return the leases that still hold something, for a member if one is named: partition and offset."""
        held = {}
        for text in texts:
            for named in read_leases([text])[0]:
                offset = named.ranges[0][0]
                message = self.known[group].holder(named.partition, offset, text, self.steady_us)
                if message and member in (None, message.member):
                    held[text] = (named.partition, offset)
        return held

    # What must hold after every step

    def check(self) -> None:
        """Compare with the reference; after a fault only a few steps later."""
        if self.stale_steps > 1:
            self.stale_steps -= 1
            return
        if self.stale_steps:
            self.heal()
        check(self)

    def drain(self) -> None:
        """Take and acknowledge everything: each message that is not done with comes, and no other."""
        self.commit()
        self.heal()
        for name in list(self.known):
            for _ in range(DRAIN_ROUNDS_MAX):
                self.expire(name)
                self.take(name, "a", 20, None, "earliest")
                self.commit()
                self.check()
                reference = self.known[name]
                fresh = [m.lease for p in reference.partitions.values() for m in p.given.values() if m.held]
                self.ack(name, fresh)
                self.commit()
                self.check()
                if not self.bench.groups.lag(self.topic, name):
                    break
                self.pass_time(LIMITS.lease_ms_default / 1000)
            for number in range(self.topic.partitions):
                part = reference.partitions[number]
                assert not part.given
                assert part.next == self.log(number)[1]
            assert self.bench.groups.lag(self.topic, name) == 0
