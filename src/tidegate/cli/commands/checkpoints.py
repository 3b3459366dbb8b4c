"""The checkpoint that a command names: by the name of a pipeline, or by a path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.completion import complete_pipelines
from tidegate.cli.installed_pipelines import pipeline_names
from tidegate.cli.invocation import Invocation

STATE_FOLDER = "state"

PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Name of a pipeline, or the path of a checkpoint folder of any Spark job.",
        autocompletion=complete_pipelines,
    ),
]


def checkpoint_of(call: Invocation, pipeline: str) -> Path:
    """Return the folder of a checkpoint: a path has a slash, a name has none."""
    from tidegate.errors import StateNotFound, TidegateError
    from tidegate.model.names import check_pipeline_name

    if os.sep in pipeline:
        return Path(pipeline).absolute()
    try:
        return call.existing_home().checkpoints_path / check_pipeline_name(pipeline)
    except TidegateError as problem:
        if Path(pipeline).is_dir():
            raise StateNotFound(state=pipeline, hint=_as_path(pipeline)) from problem
        raise


def no_state(call: Invocation, pipeline: str, path: Path) -> Exception:
    """Return the error for a checkpoint in which no operator has state."""
    from tidegate.errors import StateNotFound

    return StateNotFound(state=pipeline, hint=_why_none(call, pipeline, path))


def _why_none(call: Invocation, pipeline: str, path: Path) -> str | None:
    if os.sep in pipeline:
        if not path.is_dir():
            return f"There is no folder {path}."
        if not (path / STATE_FOLDER).is_dir():
            return f"There is no folder `{STATE_FOLDER}/` in {path}; give the checkpoint folder of the job."
        return f"No operator has done a batch in {path} yet."
    if path.is_dir():
        return f"Pipeline {pipeline} keeps no state: none of its operators has stored any."
    if Path(pipeline).is_dir():
        return _as_path(pipeline)
    if pipeline in pipeline_names(call.home_path):
        return f"Pipeline {pipeline} has not done a batch yet."
    return None


def _as_path(folder: str) -> str:
    return f"There is no pipeline of that name. A path needs a '{os.sep}': .{os.sep}{folder}"
