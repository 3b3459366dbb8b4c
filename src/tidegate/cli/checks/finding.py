"""A finding: one thing that was looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RESTORE_FIX = "Restore the newest backup into an empty home: tidegate restore FILE --home DIR."

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, what was found, and what mends it, if anything needs mending."""

    name: str
    state: State
    found: str
    fix: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return the finding as JSON has it."""
        return {"name": self.name, "state": self.state, "found": self.found, "fix": self.fix}


def ok(name: str, found: str) -> Finding:
    """Return that a thing is as it should be."""
    return Finding(name, "ok", found)


def warn(name: str, found: str, fix: str) -> Finding:
    """Return that a thing works and may bring trouble."""
    return Finding(name, "warn", found, fix)


def fail(name: str, found: str, fix: str) -> Finding:
    """Return that a thing does not work."""
    return Finding(name, "fail", found, fix)
