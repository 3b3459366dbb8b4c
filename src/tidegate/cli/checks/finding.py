"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RESTORE_FIX = "Restore the newest backup into an empty home: tidegate restore FILE --home DIR."

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, its state, what was found, and what fixes it, if anything needs to be fixed."""

    name: str
    state: State
    found: str
    fix: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return the finding for JSON."""
        return {"name": self.name, "state": self.state, "found": self.found, "fix": self.fix}


def ok(name: str, found: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(name, "ok", found)


def warn(name: str, found: str, fix: str) -> Finding:
    """Return a finding of what works and may fail later."""
    return Finding(name, "warn", found, fix)


def fail(name: str, found: str, fix: str) -> Finding:
    """Return a finding of what does not work."""
    return Finding(name, "fail", found, fix)
