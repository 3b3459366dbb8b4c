"""A consumer with a Deduplicator, of a source that delivers at least once, to be killed at any moment.

It keeps two files: `journal` has a line for each message that it forwarded, `acked` the place up to which it
has acknowledged, written after all messages of a call were forwarded.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from tests.dedup.streams import SECOND_US
from tidegate.checkpoint.crash_points import POINT_VARIABLE, crash_point
from tidegate.checkpoint.store import operator_store
from tidegate.dedup import deduplicator
from tidegate.dedup.deduplicator_checkpoint import next_number

NAME = "orders"
RETENTION = "10 s"
# Far more than the retention: a call that has messages of two waves moves stream time past the first one.
WAVE_US = 100 * SECOND_US
WAVES = 3
MESSAGES = 140
CALL_MESSAGES_MAX = 24

# Where it can be killed: in the commit of a call, and around what it does itself.
POINTS = (
    "restored",
    "worked",
    "changes-written",
    "out-written",
    "head-linked",
    "applied",
    "snapshot-linked",
    "told",
    "forwarded-one",
    "forwarded-all",
)


@dataclass(frozen=True)
class Message:
    """A message: where it is in the source, its key and its event time."""

    offset: int
    key: str
    time_us: int

    @property
    def wave(self) -> int:
        return round(self.time_us / WAVE_US)


def source(seed: int) -> list[Message]:
    """Return the messages of a seed: in waves, mixed inside each, each key several times in a wave."""
    chance = random.Random(seed)
    found = []
    for offset in range(MESSAGES):
        wave = offset * WAVES // MESSAGES
        time_us = wave * WAVE_US + chance.randint(-4 * SECOND_US, 4 * SECOND_US)
        found.append(Message(offset, f"k{chance.randint(0, 40)}", time_us))
    return found


def consume(folder: str, seed: int, turn: int, point: str | None) -> None:
    """Consume from the last acknowledgement to the end; get killed at a point of the next call or two."""
    chance = random.Random(f"{seed}/{turn}")
    home = Path(folder)
    messages = source(seed)
    deduplicator.SNAPSHOT_EVERY_CALLS = 4
    if point is not None:
        number = next_number(operator_store(folder, NAME)) + chance.randint(0, 1)
        # Few calls end with a snapshot: the next one that does.
        os.environ[POINT_VARIABLE] = f"{point}:0" if point.startswith("snapshot") else f"{point}:0:{number}"
    acked = home / "acked"
    at = int(acked.read_text()) if acked.exists() else 0
    journal = os.open(home / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with deduplicator.Deduplicator(NAME, home, RETENTION, time_unit="us") as dedup:
        number = next_number(operator_store(folder, NAME))
        while at < len(messages):
            call = messages[at : at + chance.randint(1, CALL_MESSAGES_MAX)]
            new = dedup.unique(call, key=_key, time=_time, offset=_offset)
            crash_point("told", 0, number)
            for message in new:
                os.write(journal, f"{message.offset}\n".encode())
                crash_point("forwarded-one", 0, number)
            crash_point("forwarded-all", 0, number)
            at += len(call)
            spare = acked.with_suffix(".new")
            spare.write_text(str(at))
            spare.replace(acked)
            number += 1


def _key(message: Message) -> str:
    return message.key


def _time(message: Message) -> int:
    return message.time_us


def _offset(message: Message) -> tuple[int, int]:
    return 3, message.offset
