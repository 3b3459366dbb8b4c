"""The output of `tidegate dedup`: estimates and stored segments as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.cli.output.format import bytes_text, cell_time, count_text, plural, seconds_text, time_text
from tidegate.dedup.sizing import FILTER_BYTES_A_KEY, GIB, MIB
from tidegate.model.durations import Duration, format_duration
from tidegate.model.times import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.dedup.describe import DedupState, FilterTally, SegmentState
    from tidegate.dedup.sizing import Estimate, Segments, WindowStore

US_PER_SECOND = 1_000_000
RATE_DIGITS = 6  # of a fraction, in JSON


def estimate_page(found: Estimate) -> RenderableType:
    """Return an estimate: both layouts side by side, then what ours needs of machines, then notes."""
    from rich.console import Group
    from rich.text import Text

    load = found.load
    title = (
        f"{float(load.rate):,.10g} messages a second for {format_duration(Duration(load.retention_us))}, "
        f"keys of {plural(load.key_bytes, 'byte')}, segments of {format_duration(Duration(load.segment_us))}"
    )
    notes = [Text(f"- {note}") for note in found.notes]
    space = Text("")
    return Group(Text(title), space, _compared(found), space, _needs(found.segments), space, *notes)


def _compared(found: Estimate) -> RenderableType:
    from tidegate.cli.output.tables import Listing

    load, store, ours = found.load, found.window_store, found.segments
    in_retention, live = load.segments_in_retention, load.segments_live
    headings = (
        "",
        f"window store, {plural(in_retention, 'segment')}",
        f"window store, {plural(live, 'segment')}",
        f"Tidegate, {plural(live, 'segment')}",
    )
    # GiB are truncated before they are added up, as in the estimate; below one GiB nothing would be left.
    segment = store.segment_gib * GIB or store.segment_bytes
    changelog = store.changelog_gib * GIB or store.changelog_bytes
    store_bytes, live_store_bytes = segment * in_retention, segment * live
    a_key = f"{float(store.entry_bytes):.1f} B"
    our_key = f"{float(ours.store_bytes_a_key + FILTER_BYTES_A_KEY):.1f} B"
    together = (
        store_bytes + changelog,
        live_store_bytes + changelog,
        ours.local_bytes + ours.checkpoint_bytes,
    )
    rows = [
        ("a key, on disk", a_key, a_key, our_key),
        ("a segment", *map(size_text, (segment, segment, ours.segment_bytes))),
        ("all segments", *map(size_text, (store_bytes, live_store_bytes, ours.local_bytes))),
        ("changelog, checkpoint", *map(size_text, (changelog, changelog, ours.checkpoint_bytes))),
        ("together", *map(size_text, together)),
    ]
    return Listing(headings, rows, right=(1, 2, 3), whole=(0, 1, 2, 3))


def _needs(ours: Segments) -> RenderableType:
    from tidegate.cli.output.tables import Listing

    copies = f", {plural(1 + ours.standbys, 'copy').replace('copys', 'copies')}"
    rows = [
        ("keys, at most", count_text(ours.live_keys), f"{count_text(ours.segment_keys)} a segment"),
        (
            "local disk to have",
            size_text(ours.disk_bytes),
            f"segments and {size_text(ours.compaction_bytes)} for compaction, 70 % full{copies}",
        ),
        (
            "checkpoint disk to have",
            size_text(ours.checkpoint_disk_bytes),
            f"snapshots, and {size_text(ours.changelog_files_bytes)} of changelog files, 70 % full",
        ),
        (
            "memory for filters",
            size_text(ours.filter_bytes),
            f"or {count_text(ours.filter_reads_a_second)} reads a second of 4 KiB from disk",
        ),
        ("partitions", count_text(ours.partitions), f"{size_text(ours.partition_bytes)} each"),
        (
            "into the checkpoint",
            f"{size_text(ours.change_bytes_a_second + ours.snapshot_bytes_a_second)}/s",
            f"{size_text(ours.change_bytes_a_second)}/s of changes, the rest snapshots",
        ),
        (
            "restore of a partition",
            seconds_text(ours.partition_restore_seconds),
            "from the checkpoint alone; partitions at the same time",
        ),
    ]
    return Listing(("Tidegate", "", "what is in it"), rows, right=(1,), whole=(0, 1))


def size_text(size_bytes: int) -> str:
    """Return a size in binary units, truncated and not rounded, in GiB where it is at least one."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit:,} {name}"
    return f"{size_bytes} B"


def dedup_page(operators: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the operators that deduplicate, each with its totals and its segments."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for line in operators:
        if parts:
            parts.append(Text(""))
        parts += [*map(Text, _totals(line)), segments_table(line["segments"], line["keys"])]
    return Group(*parts)


def _totals(line: Mapping[str, Any]) -> list[str]:
    rate = percent_text(line["duplicateRate"])
    added = plural(line["addedKeys"], "key")
    where = f"{plural(line['partitions'], 'partition')}, after batch {line['batch']}, which added {added}"
    behind = line["streamLagSeconds"]
    if behind is None:
        stream = "Stream time: no row yet"
    elif line["streamTime"] is None:
        stream = "Stream time: no calendar has it; look at the event times of the source"
    elif behind < 0:
        stream = f"Stream time: {time_text(line['streamTime'])}, {seconds_text(-behind)} ahead of the clock"
    else:
        stream = f"Stream time: {time_text(line['streamTime'])}, {seconds_text(behind)} behind the clock"
    lookup = line["lookupSeconds"]
    read = "" if lookup is None else f", a read takes {lookup * 1_000:.3g} ms"
    return [
        f"{line['pipeline']}, {line['name']}: {where}",
        f"Rows: {count_text(line['unique'])} unique, {count_text(line['duplicates'])} duplicate ({rate}), "
        f"{count_text(line['late'])} late",
        f"{stream}; remembered for {line['retention']}, segments of {line['interval']}",
        f"Stored: {plural(line['keys'], 'key')}, {bytes_text(line['bytes'])} in segments, "
        f"{bytes_text(line['filterBytes'])} of filters, "
        f"{bytes_text(line['checkpointBytes'])} in the checkpoint",
        f"Filters: {percent_text(line['filterFalseRate'])} false of "
        f"{plural(line['filterProbes'], 'probe')}{read}",
    ]


def segments_table(segments: Sequence[Mapping[str, Any]], keys: int) -> RenderableType:
    """Return a table of segments, the oldest first; commit records of older versions list none."""
    from tidegate.cli.output.tables import Listing

    if not segments:
        return "Segments are listed from the next batch on." if keys else "No key is stored."
    headings = ("start (UTC)", "end", "keys", "size", "filter", "false", "oldest", "newest", "expires at", "")
    rows = [
        (
            cell_time(one["start"]),
            cell_time(one["end"]),
            count_text(one["keys"]),
            bytes_text(one["bytes"]),
            bytes_text(one["filterBytes"]),
            percent_text(one["filterFalseRate"]),
            cell_time(one["oldest"]),
            cell_time(one["newest"]),
            cell_time(one["expiresAt"]),
            "active" if one["active"] else "live" if one["live"] else "expired",
        )
        for one in segments
    ]
    return Listing(
        headings,
        rows,
        right=range(2, 6),
        whole=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        spare=(6, 7, 1, 5, 4),
        note="A segment goes when the stream time reaches 'expires at'.",
    )


def dedup_counts_table(operators: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of the duplicates that operators dropped, as the worker reported it last."""
    from tidegate.cli.output.tables import Listing

    headings = ("operator", "unique", "duplicate", "late", "duplicates", "keys", "segments")
    rows = []
    for line in operators:
        found = line["dedup"]
        judged = found["unique"] + found["duplicates"] + found["late"]
        rows.append(
            (
                line["name"],
                count_text(found["unique"]),
                count_text(found["duplicates"]),
                count_text(found["late"]),
                percent_text(found["duplicates"] / judged if judged else None),
                count_text(found["keys"]),
                count_text(found["segments"]),
            )
        )
    return Listing(headings, rows, right=range(1, len(headings)), whole=(0, 1, 2, 3), spare=(6, 5, 4))


def percent_text(part: float | None) -> str:
    """Return a fraction as per cent: 0.012 %, 1.6 %, 20 %."""
    return "–" if part is None else f"{part * 100:.2g} %" if part < 0.1 else f"{part * 100:.0f} %"


def dedup_json(pipeline: str, found: DedupState, now_us: int) -> dict[str, Any]:
    """Return what one operator has stored, for JSON."""
    stream_us = found.stream_us
    return {
        "pipeline": pipeline,
        "name": found.operator,
        "partitions": found.partitions,
        "batch": found.batch,
        "retention": format_duration(Duration(found.retention_us)),
        "interval": format_duration(Duration(found.interval_us)),
        "exactKeys": found.exact_keys,
        "unique": found.unique,
        "duplicates": found.duplicates,
        "late": found.late,
        "duplicateRate": _rounded(found.duplicate_rate),
        "streamTime": _time(stream_us),
        "streamLagSeconds": None if stream_us is None else (now_us - stream_us) / US_PER_SECOND,
        "keys": found.keys,
        "addedKeys": found.added_keys,
        "bytes": found.size_bytes,
        "filterBytes": found.filter_bytes,
        "checkpointBytes": found.checkpoint_bytes,
        **_filters_json(found.filters),
        "reads": found.reads,
        "lookupSeconds": found.lookup_seconds,
        "segments": [_segment_json(one) for one in found.segments],
    }


def _segment_json(one: SegmentState) -> dict[str, Any]:
    return {
        "start": _time(one.start_us),
        "end": _time(one.end_us),
        "keys": one.keys,
        "bytes": one.size_bytes,
        "filterBytes": one.filter_bytes,
        **_filters_json(one.filters),
        "oldest": _time(one.oldest_us),
        "newest": _time(one.newest_us),
        "expiresAt": _time(one.expires_us),
        "live": one.is_live,
        "active": one.is_active,
    }


def _filters_json(filters: FilterTally) -> dict[str, Any]:
    return {
        "filterProbes": filters.probes,
        "filterMaybe": filters.maybe,
        "filterFalse": filters.false,
        "filterFalseRate": _rounded(filters.false_rate),
    }


def _time(at_us: int | None) -> str | None:
    """Return a time as text; None for none, and for one outside the calendar."""
    from tidegate.errors import TimeRangeInvalid

    try:
        return None if at_us is None else format_time(at_us)
    except TimeRangeInvalid:
        return None


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, RATE_DIGITS)


def estimate_json(found: Estimate) -> dict[str, Any]:
    """Return an estimate, for JSON; sizes are bytes unless their name ends with Gib."""
    load, store, ours = found.load, found.window_store, found.segments
    return {
        "load": {
            "rate": float(load.rate),
            "retention": format_duration(Duration(load.retention_us)),
            "interval": format_duration(Duration(load.segment_us)),
            "keyBytes": load.key_bytes,
            "duplicateShare": float(load.duplicate_share),
            "exactKeys": load.exact_keys,
            "offsets": load.with_offsets,
            "standbys": load.standbys,
        },
        "segmentsInRetention": load.segments_in_retention,
        "segmentsLive": load.segments_live,
        "keysInRetention": int(load.keys(load.retention_us)),
        "windowStore": _window_store_json(store),
        "tidegate": _segmented_store_json(ours),
        "notes": list(found.notes),
    }


def _window_store_json(store: WindowStore) -> dict[str, Any]:
    return {
        "rawEntryBytes": store.raw_entry_bytes,
        "entryBytes": float(store.entry_bytes),
        "segmentBytes": store.segment_bytes,
        "segmentGib": store.segment_gib,
        "storeGib": store.store_gib,
        "changelogBytes": store.changelog_bytes,
        "changelogGib": store.changelog_gib,
        "totalGib": store.store_gib + store.changelog_gib,
        "liveGib": store.live_gib,
        "liveTotalGib": store.live_gib + store.changelog_gib,
    }


def _segmented_store_json(ours: Segments) -> dict[str, Any]:
    return {
        "entryBytes": float(ours.store_bytes_a_key + FILTER_BYTES_A_KEY),
        "storeEntryBytes": float(ours.store_bytes_a_key),
        "filterEntryBytes": float(FILTER_BYTES_A_KEY),
        "changeEntryBytes": ours.change_bytes_a_key,
        "segmentKeys": ours.segment_keys,
        "segmentBytes": ours.segment_bytes,
        "liveKeys": ours.live_keys,
        "storeBytes": ours.store_bytes,
        "filterBytes": ours.filter_bytes,
        "localBytes": ours.local_bytes,
        "compactionBytes": ours.compaction_bytes,
        "changeFilesBytes": ours.changelog_files_bytes,
        "checkpointBytes": ours.checkpoint_bytes,
        "diskBytes": ours.disk_bytes,
        "checkpointDiskBytes": ours.checkpoint_disk_bytes,
        "partitions": ours.partitions,
        "partitionBytes": ours.partition_bytes,
        "partitionRestoreSeconds": ours.partition_restore_seconds,
        "changeBytesPerSecond": ours.change_bytes_a_second,
        "snapshotBytesPerSecond": ours.snapshot_bytes_a_second,
        "filterReadsPerSecond": ours.filter_reads_a_second,
    }
