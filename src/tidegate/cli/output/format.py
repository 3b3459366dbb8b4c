"""Numbers, sizes, durations, times and paths as short text for people."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HOME_DEFAULT = Path("~/.tidegate")
BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
# A cell longer than this is cut in a table for people; --json gives all of it.
CELL_CHARACTERS_MAX = 400


def count_text(value: float | None) -> str:
    """Return a count with separators: 1,234,567."""
    return "–" if value is None else f"{round(value):,}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 message, 2,000 messages."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def rate_text(value: float | None) -> str:
    """Return a rate: 0.4/s, 203/s, 12,345/s."""
    if value is None:
        return "–"
    return f"{value:.1f}/s" if 0 < value < 10 else f"{round(value):,}/s"


def bytes_text(value: float | None) -> str:
    """Return a size in decimal units with at most three digits: 812 B, 1.2 MB, 340 GB."""
    if value is None:
        return "–"
    size, unit = float(value), 0
    while size >= 999.5 and unit < len(BYTE_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    digits = 1 if unit and size < 9.95 else 0
    return f"{size:.{digits}f} {BYTE_UNITS[unit]}"


def seconds_text(value: float | None) -> str:
    """Return a duration with its two largest units: 0.8 s, 45 s, 3 min 5 s, 2 h 10 min, 4 d 3 h."""
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two_units(whole // 60, "min", whole % 60, "s")
    if whole < 86_400:
        return _two_units(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two_units(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _two_units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def time_text(value: str | None) -> str:
    """Return a time of an answer to the second, in UTC; "" for none."""
    if not value:
        return ""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def cell_time(value: str | None) -> str:
    """Return a time of an answer for a column whose heading says UTC."""
    return time_text(value).removesuffix(" UTC")


def first_line(text: str | None) -> str:
    """Return the first line of a text, such as a failure with its traceback."""
    return (text or "").strip().partition("\n")[0]


def cell_text(value: Any) -> str:
    """Return one value of a row as text: NULL is empty, structures are JSON, long text is cut."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > CELL_CHARACTERS_MAX:
        return text[: CELL_CHARACTERS_MAX - 1] + "…"
    return text


def program_name() -> str:
    """Return the command of this program: `tidegate` when the shell finds this one, else its path."""
    beside = Path(sys.executable).parent / "tidegate"
    found = shutil.which("tidegate")
    if found and beside.exists() and beside.samefile(found):
        return "tidegate"
    if not beside.exists():
        return f"{Path(sys.executable).name} -m tidegate"
    inside = beside.is_relative_to(Path.cwd())
    return str(beside.relative_to(Path.cwd()) if inside else beside)


def path_text(path: Path) -> str:
    """Return a path with ~ for the user's home folder."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def home_flag(home_path: Path) -> str:
    """Return the flag with which a command in another terminal finds this home; "" for the default home.

    TIDEGATE_HOME does not count: it may be set here and not there.
    """
    if home_path == HOME_DEFAULT.expanduser().absolute():
        return ""
    inside = home_path.is_relative_to(Path.cwd())
    return f" --home {home_path.relative_to(Path.cwd()) if inside else home_path}"
