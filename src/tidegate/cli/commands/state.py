"""`tidegate state`: list, show, savepoint, savepoints. Reads checkpoints, so it works while nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands import standby
from tidegate.cli.commands.checkpoints import PipelineArgument, checkpoint_of, no_state
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import bytes_text, cell_time, count_text, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.checkpoint.inspect import OperatorState
    from tidegate.checkpoint.savepoints.record import Savepoint

app = typer.Typer(name="state", help="What the operators of pipelines remember.", no_args_is_help=True)
standby.register(app)

US_PER_MS = 1_000

OperatorOption = Annotated[
    str | None, typer.Option("--operator", help="One operator; not needed where there is only one.")
]


@command(app, "list")
def list_states(call: Invocation) -> None:
    """List the operators of all pipelines of this home, with the size of their state."""
    found = [line for name, path in _checkpoints(call) for line in _lines(name, path)]
    call.answer({"operators": found}, lambda: operators_table(found))


@command(app, "show")
def show_state(
    call: Invocation,
    pipeline: PipelineArgument,
    operator: OperatorOption = None,
) -> None:
    """Show the operators of one pipeline: their states, partitions and savepoints."""
    path = checkpoint_of(call, pipeline)
    chosen = [one for one in _operators(call, pipeline, path) if operator in (None, one.operator)]
    if not chosen:
        raise _unknown(pipeline, operator)
    found = [operator_line(pipeline, path, one) | {"partitionList": _partitions(one)} for one in chosen]
    call.answer({"operators": found}, lambda: operators_page(found))


@command(app, "savepoint")
def make_savepoint(
    call: Invocation,
    pipeline: PipelineArgument,
    savepoint: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    operator: OperatorOption = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the savepoint of this name.")] = False,
) -> None:
    """Keep an operator's state under a name, while it runs or after; it stays until it is removed."""
    from tidegate.checkpoint.savepoints import savepoint as savepoints
    from tidegate.model.clock import SystemClock

    path = checkpoint_of(call, pipeline)
    chosen = _one_operator(call, pipeline, path, operator)
    if remove:
        savepoints.remove(path, chosen, savepoint)
        call.answer({"removed": savepoint}, lambda: f"Savepoint {savepoint} of {chosen} is removed.")
        return
    made = savepoints.make(path, chosen, savepoint, SystemClock())
    line = _savepoint_line(path, made)
    call.answer(line, lambda: _made_text(line, path))


@command(app, "savepoints")
def list_savepoints(
    call: Invocation,
    pipeline: PipelineArgument,
    operator: OperatorOption = None,
) -> None:
    """List the savepoints of a pipeline, the oldest first."""
    from tidegate.checkpoint.savepoints import savepoint as savepoints

    path = checkpoint_of(call, pipeline)
    there = _operators(call, pipeline, path)
    operators = [one.operator for one in there if operator in (None, one.operator)]
    if not operators:
        raise _unknown(pipeline, operator)
    found = [_savepoint_line(path, one) for each in operators for one in savepoints.listing(path, each)]
    call.answer({"savepoints": found}, lambda: savepoints_table(found))


def operators_table(operators: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of operators."""
    from tidegate.cli.output.tables import Listing

    if not operators:
        return "No pipeline keeps state yet. docs/guide/state.md shows how one does."
    headings = ("pipeline", "operator", "partitions", "batch", "entries", "size", "in checkpoint", "snapshot")
    rows = [
        (
            line["pipeline"],
            line["name"],
            count_text(line["partitions"]),
            count_text(line["batch"]),
            count_text(line["entries"]),
            bytes_text(line["stateBytes"]),
            bytes_text(line["checkpointBytes"]),
            count_text(line["snapshotBatch"]),
        )
        for line in operators
    ]
    return Listing(headings, rows, right=range(2, len(headings)), whole=(0, 1), spare=(7, 6, 2))


def operators_page(operators: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return operators one by one: the line of the list, the states, then each partition."""
    from rich.console import Group
    from rich.text import Text

    from tidegate.cli.output.tables import Listing

    parts: list[RenderableType] = []
    for line in operators:
        parts.append(operators_table([line]))
        states = ", ".join(_state_text(state) for state in line["states"])
        parts.append(Text(f"States: {states or 'none'}."))
        if line["savepoints"]:
            parts.append(Text(f"Savepoints: {', '.join(line['savepoints'])}."))
        headings = ("partition", "batch", "entries", "size", "newest event (UTC)", "next timer (UTC)")
        rows = [
            (
                str(one["partition"]),
                count_text(one.get("batch")),
                count_text(one.get("entries")),
                bytes_text(one.get("stateBytes")),
                cell_time(one.get("newestEvent")),
                cell_time(one.get("nextTimer")),
            )
            for one in line["partitionList"]
        ]
        parts.append(Listing(headings, rows, right=range(4), spare=(5, 4)))
    return Group(*parts)


def _state_text(state: Mapping[str, Any]) -> str:
    lives = f", lives {state['ttl']['duration']}" if state["ttl"] else ""
    gone = ", dropped" if state["dropped"] else ""
    return f"{state['name']} ({state['kind']}, version {state['version']}{lives}{gone})"


def savepoints_table(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of savepoints, and below it the positions of their sources."""
    from rich.console import Group
    from rich.text import Text

    from tidegate.cli.output.tables import Listing

    if not found:
        return "No savepoint yet. Make one: tidegate state savepoint PIPELINE NAME"
    headings = ("operator", "savepoint", "batch", "size", "made (UTC)", "path")
    rows = [
        (
            line["operator"],
            line["name"],
            count_text(line["batch"]),
            bytes_text(line["bytes"]),
            cell_time(line["madeAt"]),
            line["path"],
        )
        for line in found
    ]
    listing = Listing(headings, rows, right=(2, 3), whole=(0, 1, 5), spare=(4, 3))
    texts = [f"{line['operator']}, {line['name']}: {text}" for line in found for text in _sources_texts(line)]
    return Group(listing, *map(Text, texts))


def operator_line(pipeline: str, checkpoint: Path, operator: OperatorState) -> dict[str, Any]:
    """Return one operator's figures, as in the HTTP answer, with its pipeline and its states."""
    from tidegate.pipeline.worker.reports import operator_report

    return {
        "pipeline": pipeline,
        **operator_report(operator, checkpoint),
        "maxParallelism": operator.epoch.max_parallelism,
        "states": _states(checkpoint, operator.operator),
        "savepoints": list(operator.savepoints),
    }


def _partitions(operator: OperatorState) -> list[dict[str, Any]]:
    from tidegate.checkpoint.commit_record import Times

    lines = []
    for part in operator.partitions:
        commit = part.commit
        line: dict[str, Any] = {
            "partition": part.partition,
            "checkpointBytes": part.checkpoint_bytes,
            "snapshotBatch": part.snapshot_batch,
            "snapshotMadeAt": _time(part.snapshot_made_at_ms),
        }
        if commit is not None:
            times = Times.of([commit])
            timers = [times.next_event_timer_ms, times.next_processing_timer_ms]
            line |= {
                "batch": commit.batch,
                "entries": commit.entry_count,
                "stateBytes": commit.size_bytes,
                "rowsIn": commit.rows_in,
                "rowsOut": commit.rows_out,
                "deadRows": commit.dead_rows_total,
                "newestEvent": _time(commit.newest_event_ms),
                "watermark": _time(commit.watermark_ms),
                "nextTimer": _time(min((at for at in timers if at is not None), default=None)),
                "publishedAt": _time(commit.published_at_ms),
                "tookMs": commit.took_ms,
            }
        lines.append(line)
    return lines


def _savepoint_line(checkpoint: Path, savepoint: Savepoint) -> dict[str, Any]:
    from tidegate.checkpoint.savepoints.savepoint import path_of

    path = path_of(checkpoint, savepoint.operator, savepoint.name)
    return {
        "operator": savepoint.operator,
        "name": savepoint.name,
        "batch": savepoint.batch,
        "bytes": savepoint.size_bytes,
        "madeAt": _time(savepoint.made_at_ms),
        "path": str(path),
        "offsets": _offsets(path),
    }


def _offsets(savepoint: Path) -> dict[str, Any] | None:
    """Return the positions of the sources, with Spark's text of them."""
    from tidegate.checkpoint.savepoints.source_offsets import read_offsets, starting_option

    found = read_offsets(savepoint)
    if found is None:
        return None
    sources = [{"offsets": one, "startingOffsets": starting_option(one)} for one in found.sources]
    return {"sources": sources, "text": found.text}


def _sources_texts(line: Mapping[str, Any]) -> list[str]:
    texts = []
    for number, source in enumerate(line["offsets"]["sources"] if line["offsets"] else ()):
        starting = source["startingOffsets"]
        text = f"source {number} at {json.dumps(source['offsets'], ensure_ascii=False)}"
        texts.append(text if starting is None else f"{text}, startingOffsets '{starting}'")
    return texts


def _made_text(line: Mapping[str, Any], checkpoint: Path) -> str:
    from tidegate.checkpoint.store import operator_store
    from tidegate.dedup.identity import read_identity

    operator = line["operator"]
    is_dedup = read_identity(operator_store(str(checkpoint), operator), operator) is not None
    starter = "tide.deduplicate" if is_dedup else "tide.process"
    what = f"the state after batch {line['batch']}, {bytes_text(line['bytes'])}"
    sentences = [
        f"Savepoint {line['name']} of {operator} holds {what}.",
        f'Start from it: {starter}(…, savepoint="{line["path"]}") with a new checkpoint.',
        *(f"There {text}." for text in _sources_texts(line)),
    ]
    return "\n".join(sentences)


def _checkpoints(call: Invocation) -> Iterator[tuple[str, Path]]:
    root = call.existing_home().checkpoints_path
    if root.is_dir():
        yield from ((path.name, path) for path in sorted(root.iterdir()) if path.is_dir())


def _operators(call: Invocation, name: str, path: Path) -> list[OperatorState]:
    from tidegate.checkpoint.inspect import describe

    found = describe(path)
    if not found:
        raise no_state(call, name, path)
    return found


def _lines(name: str, path: Path) -> list[dict[str, Any]]:
    from tidegate.checkpoint.inspect import describe

    return [operator_line(name, path, operator) for operator in describe(path)]


def _one_operator(call: Invocation, name: str, path: Path, operator: str | None) -> str:
    names = [one.operator for one in _operators(call, name, path)]
    if operator is not None:
        if operator not in names:
            raise _unknown(name, operator)
        return operator
    if len(names) > 1:
        several = plural(len(names), "operator")
        raise typer.BadParameter(f"{name} has {several} ({', '.join(names)}): choose one with --operator")
    return names[0]


def _unknown(name: str, operator: str | None) -> Exception:
    from tidegate.errors import StateNotFound

    return StateNotFound(state=name if operator is None else f"{name}/{operator}")


def _time(at_ms: int | None) -> str | None:
    from tidegate.model.times import format_time

    return None if at_ms is None else format_time(at_ms * US_PER_MS)


def _states(checkpoint: Path, operator: str) -> list[dict[str, Any]]:
    from tidegate.checkpoint.store import operator_store
    from tidegate.state.schema.schema import newest_schema

    schema = newest_schema(operator_store(str(checkpoint), operator), operator)
    if schema is None:
        return []
    return [
        {
            "name": name,
            "kind": state.kind,
            "types": list(state.versions[state.version]),
            "version": state.version,
            "ttl": state.ttl,
            "dropped": state.dropped,
        }
        for name, state in schema.states.items()
    ]
