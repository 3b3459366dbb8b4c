"""The read of one user's logs: the rows that are not expired, replaced or deleted, in order.

Rows are ordered by time, then by number. In a table with a primary key a later row replaces an earlier one,
and a delete hides the rows it saw: the frame of the replacement or the delete never precedes these rows in
that order, so the newest rows are found from the end without reading the rest.
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
    FrameSource,
    Walk,
    take_payload,
    walk_back,
)
from tidegate.streams.frames import FrameHeader, FrameKind
from tidegate.streams.log_file import LogView
from tidegate.streams.payload_codec import Hidden, PayloadReader
from tidegate.streams.windows import Window

BACK_CHUNK_BYTES = 64 * 1024  # of one read from the end: the last rows of most users fit


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows to be read: times from `start_us`, before `stop_us`; with `last`, that many of the newest."""

    start_us: int
    stop_us: int | None = None
    last: int | None = None


@dataclass(slots=True)
class ReadResult:
    """The rows of a read, and the damage that it found."""

    rows: list[Row] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Frame:
    head: FrameHeader
    rows: list[Row]
    hidden: list[Hidden]

    @property
    def order(self) -> tuple[int, int]:
        return self.head.time_us, self.head.first_seq


class LogReader:
    """One read of one user's logs into `result`. Threads: one; holds no lock."""

    def __init__(self, disk: StreamDisk, payloads: PayloadReader, selection: RowSelection) -> None:
        self.result = ReadResult()
        self._disk = disk
        self._payloads = payloads
        self._selection = selection

    def read(self, views: Sequence[tuple[Window, LogView]]) -> ReadResult:
        """Return the selected rows, the oldest first; with `last` the newest first. Raises OSError."""
        last = self._selection.last
        if last is None:
            frames = [frame for _, view in views for frame in self._frames(view, back=False)]
            # Windows of several sizes overlap after a change of the time to live.
            frames.sort(key=lambda frame: frame.order)
            self.result.rows = self._from_oldest(frames)
        elif last > 0:
            with contextlib.closing(self._newest_first(views)) as newest:
                self.result.rows = self._alive(newest)
        return self.result

    def _from_oldest(self, frames: list[_Frame]) -> list[Row]:
        if not self._payloads.is_keyed:
            return [row for frame in frames for row in frame.rows]
        rows = self._alive(reversed(frames))
        rows.reverse()
        return rows

    def _alive(self, frames: Iterator[_Frame]) -> list[Row]:
        """Return the rows of frames, newest first, without those replaced, hidden or not selected."""
        last, stop_us = self._selection.last, self._selection.stop_us
        rows: list[Row] = []
        seen: set[Row] = set()
        hidden: dict[Row, int] = {}
        for frame in frames:
            for key, seq in frame.hidden:
                hidden[key] = max(seq, hidden.get(key, seq))
            latest = frame.rows[::-1]
            if self._payloads.is_keyed:
                latest = self._latest(latest, seen, hidden)
            if stop_us is None or frame.head.time_us < stop_us:
                rows += latest
            if last is not None and len(rows) >= last:
                return rows[:last]
        return rows

    def _latest(self, rows: list[Row], seen: set[Row], hidden: dict[Row, int]) -> list[Row]:
        latest: list[Row] = []
        for row in rows:
            key = self._payloads.key(row)
            if key not in seen:
                seen.add(key)
                seq = row[-2]
                if isinstance(seq, int) and hidden.get(key, -1) < seq:
                    latest.append(row)
        return latest

    def _newest_first(self, views: Sequence[tuple[Window, LogView]]) -> Generator[_Frame, None, None]:
        """Yield the frames of all logs, newest first; a log is opened when no other can have a newer row."""
        logs = [self._frames(view, back=True) for _, view in views]
        # Frames of a window are older than its end: an unopened log is ordered by that.
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

    def _frames(self, view: LogView, *, back: bool) -> Generator[_Frame, None, None]:
        """Yield the frames of one log that are selected, or that may replace or hide selected rows."""
        selection = self._selection
        stop_us = None if self._payloads.is_keyed else selection.stop_us
        with contextlib.ExitStack() as files:
            for source in self._sources(view, files, back=back):
                for head in walk_back(source) if back else Walk(source):
                    if isinstance(head, Damage):
                        self.result.damages.append(head)
                    elif head.time_us < selection.start_us:
                        if back:
                            return
                    elif stop_us is None or head.time_us < stop_us:
                        frame = self._decoded(source, head)
                        if frame is not None:
                            yield frame

    def _decoded(self, source: FrameSource, head: FrameHeader) -> _Frame | None:
        payload = take_payload(source, head)
        if isinstance(payload, Damage):
            self.result.damages.append(payload)
            return None
        try:
            if head.kind == FrameKind.DELETES:
                return _Frame(head, [], self._payloads.deletes(head, payload))
            return _Frame(head, self._payloads.rows(head, payload), [])
        except (msgspec.DecodeError, ValueError) as problem:
            self.result.damages.append(Damage(source.place, head.position, f"it cannot be read: {problem}"))
            return None

    def _sources(self, view: LogView, files: contextlib.ExitStack, *, back: bool) -> list[FrameSource]:
        sources: list[FrameSource] = []
        if view.file_bytes:
            # Missing: its window expired and was moved to the trash since, or something removed the file.
            with contextlib.suppress(FileNotFoundError):
                fd = self._disk.open_read(view.path)
                files.callback(self._disk.close, fd)
                chunk_bytes = BACK_CHUNK_BYTES if back else CHUNK_BYTES
                sources.append(FileSource(self._disk, fd, view.path, view.file_bytes, chunk_bytes))
        if view.unwritten:
            sources.append(BytesSource(view.unwritten, view.path, view.file_bytes))
        return sources[::-1] if back else sources
