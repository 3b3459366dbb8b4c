"""`tidegate dedup`: estimate, show. Both work without a server: stored segments are in the checkpoint."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.commands.checkpoints import PipelineArgument, checkpoint_of, no_state
from tidegate.cli.invocation import Invocation, command

if TYPE_CHECKING:
    from tidegate.dedup.describe import DedupState

app = typer.Typer(
    name="dedup", help="How much deduplication takes, and what it has stored.", no_args_is_help=True
)

DIGITS_MAX = 32  # of a number on the command line
# Thousands may be separated, and an exponent has two digits at most: more would be a mistake.
_NUMBER = re.compile(
    r"[+-]?([0-9_]+|[0-9]{1,3}(,[0-9]{3})+)?(\.[0-9]*)?(e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE
)

RateOption = Annotated[str, typer.Option("--rate", metavar="NUMBER", help="Messages a second.")]
RetentionOption = Annotated[
    str,
    typer.Option("--retention", metavar="DURATION", help="For how long a key counts: '100 days', '24 h'."),
]
KeyBytesOption = Annotated[int, typer.Option("--key-bytes", help="Size of a key.")]
ValueBytesOption = Annotated[int, typer.Option("--value-bytes", help="Window store: size of a value.")]
MetadataBytesOption = Annotated[
    int, typer.Option("--metadata-bytes", help="Window store: what is added to an entry.")
]
OverheadOption = Annotated[
    str, typer.Option("--overhead", metavar="FACTOR", help="Window store: what RocksDB makes of an entry.")
]
ChangelogOption = Annotated[
    str,
    typer.Option("--changelog-overhead", metavar="FACTOR", help="Window store: the same for the changelog."),
]
IntervalOption = Annotated[
    str | None,
    typer.Option(
        "--interval", metavar="DURATION", help="Length of a segment; half the retention unless set."
    ),
]
DuplicatesOption = Annotated[
    str, typer.Option("--duplicate-rate", metavar="SHARE", help="Part that is duplicates: '0.6%' or 0.006.")
]
PartitionsOption = Annotated[
    int | None, typer.Option("--partitions", help="Partitions of the query; advised unless set.")
]
ExactOption = Annotated[bool, typer.Option("--exact-keys", help="Store the keys, not 16 bytes of digest.")]
OffsetsOption = Annotated[bool, typer.Option("--offsets", help="Store the source's offset with each time.")]
StandbysOption = Annotated[int, typer.Option("--standbys", help="Standby local stores on other hosts.")]


@command(app, "estimate")
def estimate_room(  # noqa: PLR0913 - one parameter for each option that people may set
    call: Invocation,
    *,
    rate: RateOption = "1000",
    retention: RetentionOption = "100 days",
    key_bytes: KeyBytesOption = 64,
    value_bytes: ValueBytesOption = 8,
    metadata_bytes: MetadataBytesOption = 12,
    overhead: OverheadOption = "1.3",
    changelog_overhead: ChangelogOption = "1.3",
    interval: IntervalOption = None,
    duplicate_rate: DuplicatesOption = "0.001%",
    partitions: PartitionsOption = None,
    exact_keys: ExactOption = False,
    offsets: OffsetsOption = False,
    standbys: StandbysOption = 0,
) -> None:
    """Estimate disk, memory and checkpoint for a load, next to Kafka Streams' window store."""
    from tidegate.cli.output.dedup_tables import estimate_json, estimate_page
    from tidegate.dedup.sizing import Workload, estimate
    from tidegate.model.durations import parse_duration

    load = Workload(
        rate=_number("--rate", rate),
        retention_us=parse_duration(retention).us,
        interval_us=None if interval is None else parse_duration(interval).us,
        key_bytes=key_bytes,
        duplicate_share=_share("--duplicate-rate", duplicate_rate),
        exact_keys=exact_keys,
        with_offsets=offsets,
        partitions=partitions,
        standbys=standbys,
        value_bytes=value_bytes,
        metadata_bytes=metadata_bytes,
        overhead=_number("--overhead", overhead),
        changelog_overhead=_number("--changelog-overhead", changelog_overhead),
    )
    found = estimate(load)
    call.answer(estimate_json(found), lambda: estimate_page(found))


@command(app, "show")
def show_segments(
    call: Invocation,
    pipeline: PipelineArgument,
    operator: Annotated[
        str | None, typer.Option("--operator", help="One operator of several; all unless set.")
    ] = None,
) -> None:
    """Show what deduplication caught and stored: segments with their keys, bytes, filters and expiry."""
    from tidegate.cli.output.dedup_tables import dedup_json, dedup_page
    from tidegate.model.clock import SystemClock

    now_us = SystemClock().now_us()
    found = [dedup_json(pipeline, one, now_us) for one in _chosen(call, pipeline, operator)]
    call.answer({"operators": found}, lambda: dedup_page(found))


def _chosen(call: Invocation, pipeline: str, operator: str | None) -> list[DedupState]:
    from tidegate.checkpoint.inspect import describe as operators_of
    from tidegate.dedup.describe import dedup_state
    from tidegate.errors import StateNotFound

    path = checkpoint_of(call, pipeline)
    there = operators_of(path)
    if not there:
        raise no_state(call, pipeline, path)
    states = [state for one in there if (state := dedup_state(path, one)) is not None]
    found = [state for state in states if operator in (None, state.operator)]
    if found:
        return found
    if not states:
        others = ", ".join(one.operator for one in there)
        hint = f"No operator there has deduplicated a batch; `tidegate state show` has {others}."
        raise StateNotFound(state=pipeline, hint=hint)
    names = ", ".join(state.operator for state in states)
    raise StateNotFound(
        state=f"{pipeline}/{operator}", hint=f"No operator of that name deduplicates there; {names} does."
    )


def _number(option: str, text: str) -> Fraction:
    """Return a number exactly as written: 1.3 is 13/10."""
    from tidegate.errors import RequestInvalid
    from tidegate.model.names import shorten

    plain = text.strip()
    try:
        if len(plain) > DIGITS_MAX or not _NUMBER.fullmatch(plain):
            raise ValueError
        return Fraction(plain.replace(",", ""))
    except ValueError:
        reason = f"{option} takes a number such as 1000, 1e6 or 0.5, not '{shorten(text)}'."
        raise RequestInvalid(reason=reason) from None


def _share(option: str, text: str) -> Fraction:
    """Return a fraction, written as such or in per cent."""
    plain = text.strip()
    return _number(option, plain[:-1]) / 100 if plain.endswith("%") else _number(option, plain)
