"""Reading: takes what a reader sees of one user's logs, gives the rows that are alive, in order.

Rows are ordered by time, then by number. In a table with a primary key a later row replaces an earlier one,
and a delete hides the rows it saw: a frame that says so never lies before them in that order, so the newest
rows can be found from the end without a look at the rest.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from tidegate.model.tables import Row
from tidegate.streams.disk import FileSource, StreamDisk
from tidegate.streams.frame_reader import (
    CHUNK_BYTES,
    BytesSource,
    Damage,
    Source,
    Walk,
    take_payload,
    walk_back,
)
from tidegate.streams.frames import FrameKind, Head
from tidegate.streams.log_file import View
from tidegate.streams.payload_codec import Hidden, PayloadReader
from tidegate.streams.windows import Window

BACK_CHUNK_BYTES = 64 * 1024  # read at once from the end: the last rows of most users fit


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows: times from `start_us`, before `stop_us`; with `last`, that many of the newest."""

    start_us: int
    stop_us: int | None = None
    last: int | None = None


@dataclass(slots=True)
class Found:
    """The rows of a read, and the damage that it met."""

    rows: list[Row] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Frame:
    head: Head
    rows: list[Row]
    hidden: list[Hidden]

    @property
    def order(self) -> tuple[int, int]:
        return self.head.time_us, self.head.first_seq


class LogReader:
    """One read of one user's logs: `found` has its rows and what it met. Threads: one; holds no lock."""

    def __init__(self, disk: StreamDisk, payloads: PayloadReader, wanted: Wanted) -> None:
        self.found = Found()
        self._disk = disk
        self._payloads = payloads
        self._wanted = wanted

    def read(self, views: Sequence[tuple[Window, View]]) -> Found:
        """Return the rows that are wanted, the oldest first; with `last` the newest first. Raises OSError."""
        last = self._wanted.last
        if last is None:
            frames = [frame for _, view in views for frame in self._frames(view, back=False)]
            # Windows of several sizes overlap after a change of the time to live.
            frames.sort(key=lambda frame: frame.order)
            self.found.rows = self._from_oldest(frames)
        elif last > 0:
            with contextlib.closing(self._newest_first(views)) as newest:
                self.found.rows = self._alive(newest)
        return self.found

    def _from_oldest(self, frames: list[_Frame]) -> list[Row]:
        if not self._payloads.is_keyed:
            return [row for frame in frames for row in frame.rows]
        rows = self._alive(reversed(frames))
        rows.reverse()
        return rows

    def _alive(self, frames: Iterator[_Frame]) -> list[Row]:
        """Return rows of frames that come newest first, without what is replaced, hidden or not wanted."""
        last, stop_us = self._wanted.last, self._wanted.stop_us
        rows: list[Row] = []
        seen: set[Row] = set()
        hidden: dict[Row, int] = {}
        for frame in frames:
            for key, seq in frame.hidden:
                hidden[key] = max(seq, hidden.get(key, seq))
            fresh = frame.rows[::-1]
            if self._payloads.is_keyed:
                fresh = self._latest(fresh, seen, hidden)
            if stop_us is None or frame.head.time_us < stop_us:
                rows += fresh
            if last is not None and len(rows) >= last:
                return rows[:last]
        return rows

    def _latest(self, rows: list[Row], seen: set[Row], hidden: dict[Row, int]) -> list[Row]:
        kept: list[Row] = []
        for row in rows:
            key = self._payloads.key(row)
            if key not in seen:
                seen.add(key)
                seq = row[-2]
                if isinstance(seq, int) and hidden.get(key, -1) < seq:
                    kept.append(row)
        return kept

    def _newest_first(self, views: Sequence[tuple[Window, View]]) -> Generator[_Frame, None, None]:
        """Merge logs from their ends; one is opened when no newer row can be in another."""
        logs = [self._frames(view, back=True) for _, view in views]
        # Frames of a window are older than its end: that is where an unopened log waits its turn.
        heap: list[tuple[int, int, int, _Frame | None]]
        heap = [(-window.stop_us, 0, place, None) for place, (window, _) in enumerate(views)]
        heapq.heapify(heap)
        try:
            while heap:
                _, _, place, frame = heapq.heappop(heap)
                if frame is not None:
                    yield frame
                following = next(logs[place], None)
                if following is not None:
                    time_us, seq = following.order
                    heapq.heappush(heap, (-time_us, -seq, place, following))
        finally:
            for log in logs:
                log.close()

    def _frames(self, view: View, *, back: bool) -> Generator[_Frame, None, None]:
        """Yield the frames of one log that are wanted, or that say something about those that are."""
        wanted = self._wanted
        stop_us = None if self._payloads.is_keyed else wanted.stop_us
        with contextlib.ExitStack() as opened:
            for source in self._sources(view, opened, back=back):
                for head in walk_back(source) if back else Walk(source):
                    if isinstance(head, Damage):
                        self.found.damages.append(head)
                    elif head.time_us < wanted.start_us:
                        if back:
                            return
                    elif stop_us is None or head.time_us < stop_us:
                        frame = self._decoded(source, head)
                        if frame is not None:
                            yield frame

    def _decoded(self, source: Source, head: Head) -> _Frame | None:
        payload = take_payload(source, head)
        if isinstance(payload, Damage):
            self.found.damages.append(payload)
            return None
        try:
            if head.kind == FrameKind.DELETES:
                return _Frame(head, [], self._payloads.deletes(head, payload))
            return _Frame(head, self._payloads.rows(head, payload), [])
        except (msgspec.DecodeError, ValueError) as problem:
            self.found.damages.append(Damage(source.place, head.position, f"it cannot be read: {problem}"))
            return None

    def _sources(self, view: View, opened: contextlib.ExitStack, *, back: bool) -> list[Source]:
        sources: list[Source] = []
        if view.file_bytes:
            # Not there: its window is over and went out of sight since, or something else removed the file.
            with contextlib.suppress(FileNotFoundError):
                fd = self._disk.open_read(view.path)
                opened.callback(self._disk.close, fd)
                chunk_bytes = BACK_CHUNK_BYTES if back else CHUNK_BYTES
                sources.append(FileSource(self._disk, fd, view.path, view.file_bytes, chunk_bytes))
        if view.unwritten:
            sources.append(BytesSource(view.unwritten, view.path, view.file_bytes))
        return sources[::-1] if back else sources
