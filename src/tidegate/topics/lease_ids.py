"""Lease ids: takes a partition, a grant and an offset, gives the text that a consumer holds, and back.

    <partition>.<grant in hex>.<offset>        0.1f3c9a0b2c4d1000.17

A grant is one take: its number is never given out twice, so that a consumer that comes back late cannot touch
what was leased to another since.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LEASE_CHARS_MAX = 48  # partition, grant and offset at their longest, and two dots
ECHO_CHARS_MAX = 200  # of a text that is no lease, when it is named to whoever sent it
_LEASE = r"(?:0|[1-9][0-9]{0,9})\.[0-9a-f]{16}\.(?:0|[1-9][0-9]{0,18})"
_ONE = re.compile(_LEASE)
# One match for all of them: thousands of leases come in one request.
_ALL = re.compile(rf"(?:{_LEASE}\n)*")


def lease_prefix(partition: int, grant: int) -> str:
    """Give what the leases of one grant begin with; the offset follows."""
    return f"{partition}.{grant:016x}."


def lease_id(partition: int, grant: int, offset: int) -> str:
    """Give the text of one lease."""
    return f"{partition}.{grant:016x}.{offset}"


@dataclass(frozen=True, slots=True)
class Named:
    """Leases of one grant, named together: half-open ranges of offsets that rise and do not touch."""

    partition: int
    grant: int
    ranges: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """The number of leases."""
        return sum(stop - start for start, stop in self.ranges)


def read_leases(leases: Sequence[str]) -> tuple[list[Named], list[str]]:
    """Give what leases name, by grant, and the texts that are none. One that is there twice counts once."""
    strange: list[str] = []
    if not _are_all(leases):
        wrong = dict.fromkeys(text for text in leases if not _ONE.fullmatch(text))
        strange = [text[:ECHO_CHARS_MAX] for text in wrong]
        leases = [text for text in leases if text not in wrong]
    return _by_grant(leases), strange


def _by_grant(leases: Sequence[str]) -> list[Named]:
    offsets_of: dict[str, list[int]] = {}
    for text in leases:
        head, _, offset = text.rpartition(".")
        offsets_of.setdefault(head, []).append(int(offset))
    named = []
    for head, offsets in offsets_of.items():
        partition, _, grant = head.partition(".")
        named.append(Named(int(partition), int(grant, 16), _ranges(sorted(set(offsets)))))
    return named


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(offsets[0], offsets[-1] + 1)]
    found: list[tuple[int, int]] = []
    start = stop = offsets[0]
    for offset in offsets:
        if offset != stop:
            found.append((start, stop))
            start = offset
        stop = offset + 1
    found.append((start, stop))
    return found


def _are_all(leases: Sequence[str]) -> bool:
    text = "\n".join(leases)
    # A line break inside a text would pass as two leases.
    is_counted = text.count("\n") == max(0, len(leases) - 1)
    return is_counted and _ALL.fullmatch(text + "\n" if leases else "") is not None
