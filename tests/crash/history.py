"""The smallest history of a fault: the events of its subjects and the kills around them, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.crash.journal import Event, Journal

# A thousand lost messages are one bug: a few of them show it.
SUBJECTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """A promise that did not hold, and the subjects whose events show it."""

    promise: str
    found: str
    subjects: tuple[str, ...] = ()


def smallest_history(journal: Journal, fault: Fault) -> list[Event]:
    """Return the events of the fault's first subjects, with the kills before, between and after them."""
    chosen = set(fault.subjects[:SUBJECTS_SHOWN])
    events = list(journal)
    own = [event.number for event in events if event.subject in chosen]
    if not own:
        return [event for event in events if event.kind in ("kill", "up")]
    kills = [event.number for event in events if event.kind in ("kill", "up")]
    before = max((number for number in kills if number < own[0]), default=own[0])
    after = min((number for number in kills if number > own[-1]), default=own[-1])
    return [
        event
        for event in events
        if event.subject in chosen or (event.kind in ("kill", "up") and before <= event.number <= after)
    ]


def report(journal: Journal, faults: Iterable[Fault], seed: int, workloads: Sequence[str]) -> str:
    """Write every fault with its smallest history, and how to run it again."""
    chosen = "".join(f" --workload {name}" for name in workloads)
    lines = [
        f"seed {seed}: repeat with  python -m tests.crash.loop --seed {seed}{chosen}",
        f"journal: {journal.path}",
    ]
    for fault in faults:
        lines += ["", f"BROKEN: {fault.promise}", f"  found: {fault.found}"]
        if len(fault.subjects) > SUBJECTS_SHOWN:
            lines.append(f"  {len(fault.subjects)} subjects, the first {SUBJECTS_SHOWN} shown")
        lines += [f"  {event}" for event in smallest_history(journal, fault)]
    return "\n".join(lines)
