"""The checks of the machine: memory, open files, clock, and the disk under the home."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.output.format import bytes_text, seconds_text
from tidegate.settings import Settings

MIB = 1024 * 1024
# Twice what the engine keeps open (512), the connections of a busy server, and Spark.
OPEN_FILES_MIN = 2048
# Below this a day of messages or one compaction may fill the disk.
FREE_BYTES_ROOMY = 2_000_000_000
# What Python, DuckDB's own code and Spark's Java need beside the memory that settings name.
BESIDE_BYTES = 1024 * MIB
# Clocks of file systems and of Python differ by a tick; a second behind is no problem.
CLOCK_SLACK_SECONDS = 2.0
ANSWER_SECONDS_MAX = 5.0

# Where a lock of one machine does not hold on another, or where `fsync` promises less.
NETWORK_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs")
)
MEMORY_SYSTEMS = frozenset(("tmpfs", "ramfs"))


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    place: str
    kind: str


def check_memory(total_bytes: int, settings: Settings) -> Finding:
    """Check that the machine has the memory that the settings allow to be used."""
    driver = settings.worker.driver_memory_mb * MIB
    query = settings.query.memory_mb * MIB
    allowed_bytes = (
        driver + query + settings.storage.block_cache_bytes + settings.storage.write_buffer_bytes * 3
    )
    found = f"{bytes_text(total_bytes)}; the settings allow {bytes_text(allowed_bytes)}"
    # A third for the driver leaves room for the server, for Spark's Python and for the disk cache.
    advice_mb = max(512, total_bytes // MIB // 3)
    fix = f"Set driver_memory_mb = {advice_mb} under [worker] in tidegate.toml."
    if driver >= total_bytes:
        return fail("memory", f"{found}, {bytes_text(driver)} of it to Spark alone", fix)
    if allowed_bytes + BESIDE_BYTES > total_bytes:
        return warn("memory", f"{found}, and the programs themselves need {bytes_text(BESIDE_BYTES)}", fix)
    return ok("memory", found)


def memory_limit_bytes(group: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the memory that this process may use: the machine's, or less where a container sets a limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        text = group.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return total  # no such limit on this machine
    return min(total, int(text)) if text.isdecimal() else total


def check_open_files(soft: int, hard: int) -> Finding:
    """Check that enough files may be open at once; a limit below 0 is none."""
    if soft < 0 or soft >= OPEN_FILES_MIN:
        return ok("open files", f"{'no limit' if soft < 0 else f'{soft:,} at most'}")
    found = f"{soft:,} may be open at once; {OPEN_FILES_MIN:,} are safe"
    if 0 <= hard < OPEN_FILES_MIN:
        return warn("open files", found, f"Raise the limit: LimitNOFILE={OPEN_FILES_MIN} or limits.conf.")
    return warn("open files", found, f"ulimit -n {OPEN_FILES_MIN}, in the shell that starts Tidegate.")


def check_clock(now_seconds: float, newest_seconds: float | None, newest: str) -> Finding:
    """Check that the clock is not behind what is stored: times would go back, tokens live longer."""
    if newest_seconds is None:
        return ok("clock", "nothing is stored yet to compare it with")
    behind = newest_seconds - now_seconds
    if behind > CLOCK_SLACK_SECONDS:
        found = f"it is {seconds_text(behind)} behind {newest}"
        return warn("clock", found, "Set it: timedatectl set-ntp true, or date --set.")
    return ok("clock", "not behind what is stored")


def check_clock_sync(timedatectl: str = "timedatectl") -> Finding | None:
    """Check that the clock is synchronized; None where the machine does not report it."""
    command = [timedatectl, "show", "--property=NTPSynchronized", "--value"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    word = answer.stdout.strip()
    if answer.returncode != 0 or word not in ("yes", "no"):
        return None
    if word == "no":
        return warn("clock sync", "nothing keeps the clock right", "timedatectl set-ntp true")
    return ok("clock sync", "the clock is kept right over the network")


def newest_time(files: Iterable[Path]) -> tuple[float | None, str]:
    """Return the newest change of files, and the name of that file."""
    newest, name = None, ""
    for file in files:
        try:
            changed = file.stat().st_mtime
        except OSError:
            continue  # gone meanwhile
        if newest is None or changed > newest:
            newest, name = changed, str(file)
    return newest, name


def check_disk_room(free_bytes: int, free_bytes_min: int, place: Path) -> Finding:
    """Check that there is room to write."""
    found = f"{bytes_text(free_bytes)} free for {place}"
    if free_bytes < free_bytes_min:
        least = f"writes are refused below {bytes_text(free_bytes_min)} (storage.free_bytes_min)"
        return fail("disk room", f"{found}; {least}", "Free some space, or use another disk: --home DIR.")
    if free_bytes < FREE_BYTES_ROOMY:
        return warn("disk room", found, "Free some space before it runs out.")
    return ok("disk room", found)


def check_file_system(place: Path, mounts: Iterable[Mount]) -> Finding:
    """Check that the home is on a disk of this machine."""
    mount = mount_of(place, mounts)
    if mount is None:
        return ok("file system", "its kind is not known here")
    found = f"{mount.kind} at {mount.place}"
    if mount.kind in NETWORK_SYSTEMS:
        risk = "locks and fsync promise less over a network"
        return warn("file system", f"{found}: {risk}", "Use a disk of this machine: --home DIR.")
    if mount.kind in MEMORY_SYSTEMS:
        return warn("file system", f"{found}: a restart of the machine empties it", "Use a disk: --home DIR.")
    return ok("file system", found)


def check_hard_links(folder: Path, link: Callable[[Path, Path], None] = os.link) -> Finding:
    """Check that hard links work, by making one: backups and upgrades then need little space."""
    name = "hard links"
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as made:
            first = Path(made) / "one"
            first.touch()
            try:
                link(first, Path(made) / "two")
            except OSError as problem:
                found = f"{folder} has none ({problem.strerror}): backups and upgrades copy every file"
                return warn(name, found, "Keep twice the room free, or use a disk with hard links.")
    except OSError as problem:
        found = f"{folder} cannot be written: {problem.strerror}"
        return fail(name, found, f"chown -R $USER {folder}, or free some space.")
    return ok(name, "they work")


def read_mounts(table: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """Return the mounted file systems; none where the machine does not list them."""
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # Fields 5 and, after the dash, 1: the mount point, with blanks as \040, and the kind.
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if dash and len(fields) > 4:
            place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
            found.append(Mount(place, after.split(" ")[0]))
    return found


def mount_of(place: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the file system of a path; of two at one mount point the later one, which covers the other."""
    resolved = place.resolve()
    holding = [mount for mount in mounts if resolved.is_relative_to(mount.place)]
    return max(enumerate(holding), key=lambda entry: (len(entry[1].place), entry[0]))[1] if holding else None


def existing_parent(path: Path) -> Path:
    """Return the path, or the nearest folder above it that is there and visible."""
    return next(folder for folder in (path, *path.parents) if is_seen(folder))


def is_seen(path: Path) -> bool:
    """True if something is there and visible: a folder without permission hides what is inside."""
    try:
        return path.exists()
    except OSError:
        return False
