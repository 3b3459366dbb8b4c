"""Pipeline files: what is wrong with one is said with file, line and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import HomeUnusable, NameInvalid, PipelineInvalid
from tidegate.pipeline.worker.definitions import PipelineContext, build_writer, load_pipeline
from tidegate.storage.home.home import Home

HEAD = "from tidegate import spark as tide\n\n"
GOOD = HEAD + '@tide.pipeline(name="events")\ndef events(ctx):\n    return ctx.spark\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "events.py"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> PipelineInvalid:
    with pytest.raises(PipelineInvalid) as raised:
        load_pipeline(path)
    assert str(path) in str(raised.value)
    return raised.value


def test_one_decorated_function_is_the_pipeline(tmp_path: Path) -> None:
    found = load_pipeline(write(tmp_path, GOOD))
    assert (found.name, found.line) == ("events", 3)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("def events(:\n    pass\n", 1, "invalid syntax"),
        (HEAD + "x = 1\n", None, "no function in it is under @tide.pipeline"),
        (GOOD + GOOD.removeprefix(HEAD).replace("events", "more"), 6, "'events' and 'more' are both"),
        (HEAD + "import no_such_module\n", 3, "no_such_module"),
        (HEAD + "def f():\n    return 1 / 0\n\nf()\n", 4, "division by zero"),
        (HEAD + "import sys\nsys.exit(3)\n", 4, "exits while it is loaded"),
        (GOOD.replace('"events"', '"Bad Name"'), 3, "'Bad Name' is not a valid pipeline name"),
        ("x = '\0'", None, "null bytes"),
    ],
    ids=["syntax", "none", "two", "import", "raises", "exits", "name", "bytes"],
)
def test_wrong_file_is_refused_with_line_and_reason(
    tmp_path: Path, text: str, line: int | None, words: str
) -> None:
    error = refusal(write(tmp_path, text))
    assert words in error.message
    assert error.values["line"] == line
    assert line is None or f"line {line}: " in error.message


def test_absent_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "events.py").message


def test_pipeline_that_was_imported_from_elsewhere_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    text = HEAD + f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom events import events\n"
    other = tmp_path / "other.py"
    other.write_text(text + GOOD.removeprefix(HEAD).replace("events", "other"), encoding="utf-8")
    assert load_pipeline(other).name == "other"


def test_dataclasses_in_a_pipeline_file_work(tmp_path: Path) -> None:
    extra = "from dataclasses import dataclass\n\n@dataclass\nclass Row:\n    n: int\n\nROW = Row(1)\n"
    assert (
        load_pipeline(write(tmp_path, "from __future__ import annotations\n" + GOOD + extra)).name == "events"
    )


def make_context(spark: Any, tmp_path: Path) -> PipelineContext:
    return PipelineContext(spark, Home.open(tmp_path / "home", make_token=lambda: "token"))


def test_lake_gives_the_tables_path_and_remembers_it(tmp_path: Path) -> None:
    context = make_context(None, tmp_path)
    assert context.lake("events") == str(tmp_path / "home" / "lake" / "events")
    assert context.tables == ("events",)
    with pytest.raises(NameInvalid):
        context.lake("../out")


@pytest.mark.parametrize("kind", [Path, str])
def test_context_takes_the_path_of_a_home(tmp_path: Path, kind: type[Path] | type[str]) -> None:
    context = make_context(None, tmp_path)
    by_path = PipelineContext(None, kind(tmp_path / "home"), "copy")
    assert by_path.home == context.home
    assert by_path.checkpoint == str(tmp_path / "home" / "checkpoints" / "copy")


def test_context_of_a_folder_that_is_no_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeUnusable, match="there is no home there"):
        PipelineContext(None, tmp_path / "nowhere")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "returns nothing"),
        ("return rows", "returns a DataFrame"),
        ("return 5", "returns a int"),
        ('return rows.writeStream.format("noop").start()', "leave .start() away"),
    ],
    ids=["none", "frame", "number", "started"],
)
def test_wrong_return_is_refused(spark: Any, tmp_path: Path, body: str, words: str) -> None:
    rows = '    rows = ctx.spark.readStream.format("rate").load()\n    '
    text = HEAD + '@tide.pipeline(name="events")\ndef events(ctx):\n' + rows + body + "\n"
    with pytest.raises(PipelineInvalid) as raised:
        build_writer(load_pipeline(write(tmp_path, text)), make_context(spark, tmp_path))
    assert words in raised.value.message
    assert "line " in raised.value.message
    assert spark.streams.active == []


@pytest.mark.spark
def test_functions_of_the_file_run_in_spark_workers(spark: Any, tmp_path: Path) -> None:
    text = (
        HEAD + "from pyspark.sql.functions import udf\n\ndef twice(n):\n    return 2 * n\n\n"
        '@tide.pipeline(name="events")\ndef events(ctx):\n'
        "    return ctx.spark.range(3).select(udf(twice, 'long')('id').alias('n'))\n"
    )
    made: Any = load_pipeline(write(tmp_path, text))(make_context(spark, tmp_path))
    assert sorted(row.n for row in made.collect()) == [0, 2, 4]
