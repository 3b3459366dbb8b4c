"""One child process, as the server sees it: its channels, its memory, its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
from collections.abc import Hashable
from pathlib import Path

from tidegate.query.processes.channel import Channel, ChannelClosed

# A killed process ends once the kernel has freed its memory.
END_SECONDS_MAX = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class QueryChild:
    """A child that the fork server started; `owner` is None until its first session."""

    def __init__(self, pid: int, channel: Channel, control: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self.owner: Hashable = None
        # A directory of its own, removed with it.
        self.spill_path: Path | None = None
        self._control = control
        self._lock = threading.Lock()
        try:
            # Signals go to this process and to no later one with the same number.
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None

    def interrupt(self) -> None:
        """Ask the child to interrupt its statement, now and until it is killed."""
        with contextlib.suppress(ChannelClosed):
            self._control.send(0, b"")

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return not self._has_ended(0.0)

    def end(self) -> None:
        """Kill the child and wait until it is gone."""
        self.kill()
        self._has_ended(END_SECONDS_MAX)
        self.close()

    def _has_ended(self, seconds_max: float) -> bool:
        if self._pidfd is None:
            return True
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return bool(ended.poll(seconds_max * 1000))

    def private_bytes(self) -> int:
        """Return the memory that is not shared with other processes; 0 for a child that is gone."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_bytes().split()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES if len(fields) > 2 else 0

    def kill(self) -> None:
        """Kill the child; who waits for its answer gets ChannelClosed. A second call does nothing."""
        with self._lock:
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child and remove what it left; nobody uses it any more."""
        self.kill()
        with self._lock:
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        self.channel.close()
        self._control.close()
        if self.spill_path is not None:
            shutil.rmtree(self.spill_path, ignore_errors=True)
