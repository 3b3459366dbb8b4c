"""The endpoint of metrics: a real server is scraped, both ways, and a broken part leaves the others there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import httpx
import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tidegate.model.times import format_time
from tidegate.model.wire.status import WorkerReport
from tidegate.server.api.metrics import render
from tidegate.server.runtime.runtime import ReceivedReport, Runtime, open_runtime
from tidegate.settings import load_settings
from tidegate.storage.home.home import Home
from tidegate.telemetry.metric_families import FAMILIES, PIPELINE_LABELS_MAX, SCRAPE_PARTS
from tidegate.testing.clock import ManualClock
from tidegate.testing.server import RunningServer, running_server

# These are not there before a worker reports.
NOT_AT_ONCE = {
    "tidegate_worker_report_age_seconds",
    "tidegate_worker_memory_bytes",
    "tidegate_worker_state_disk_used_bytes",
    "tidegate_worker_state_disk_size_bytes",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of its own: what others left on a shared one may go while it is counted here."""
    with running_server(tmp_path_factory.mktemp("metrics") / "home") as running:
        yield running


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Runtime]:
    """Open the parts of a server without its door."""
    home = Home.open(tmp_path / "home", lambda: secrets.token_urlsafe(32))
    loop = asyncio.new_event_loop()
    opened = open_runtime(load_settings(None, {}), home, ManualClock(), loop)
    try:
        yield opened
    finally:
        opened.close()
        loop.close()


def samples(text: bytes) -> dict[str, float]:
    """Return every sample as `name label=value …`."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def types(text: bytes) -> list[str]:
    return [line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")]


def test_every_family_is_in_a_scrape_once(running: Runtime) -> None:
    running.worker = received(report([pipeline("p")]), running.clock.monotonic_seconds())
    found = types(render(running)[0])
    assert sorted(found) == sorted(family.name for family in FAMILIES)


def test_a_new_server_without_a_worker_says_so(running: Runtime) -> None:
    found = samples(render(running)[0])
    assert found["tidegate_worker_up"] == 0
    assert found["tidegate_topics"] == 0
    assert found["tidegate_catalog_up"] == 1
    assert found["tidegate_disk_free_bytes"] > 0
    assert found["tidegate_engine_disk_bytes"] > 0
    assert found["tidegate_process_memory_bytes"] > 1_000_000
    assert found["tidegate_process_open_files"] > 0
    assert found["tidegate_uptime_seconds"] >= 0
    assert [value for name, value in found.items() if name.startswith("tidegate_build_info")] == [1]
    assert set(types(render(running)[0])) == {family.name for family in FAMILIES} - NOT_AT_ONCE - {
        family.name for family in FAMILIES if family.name.startswith("tidegate_pipeline_")
    }


@pytest.mark.parametrize("part", SCRAPE_PARTS)
def test_a_part_that_fails_is_counted_and_the_others_are_there(
    running: Runtime, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.server.api import metrics as module

    def broken(_running: Runtime) -> NoReturn:
        raise OSError("the disk is gone")

    whole = set(types(render(running)[0]))
    monkeypatch.setitem(module._PARTS, part, broken)
    scraped = render(running)[0]
    left = set(types(scraped))
    assert left < whole
    assert len(left) > len(whole) / 2
    assert samples(scraped)[f"tidegate_scrape_errors_total part={part}"] == 1
    others = {name: value for name, value in samples(scraped).items() if "scrape_errors" in name}
    assert sum(others.values()) == 1


def test_an_engine_folder_that_is_gone_breaks_no_scrape(running: Runtime, tmp_path: Path) -> None:
    (tmp_path / "home" / "engine").rename(tmp_path / "elsewhere")
    try:
        found = samples(render(running)[0])
    finally:
        (tmp_path / "elsewhere").rename(tmp_path / "home" / "engine")
    assert found["tidegate_scrape_errors_total part=engine"] == 1
    assert "tidegate_engine_disk_bytes" not in found
    assert found["tidegate_topics"] == 0


def pipeline(name: str, state: str = "running", **more: object) -> dict[str, object]:
    counts = {"batches": 3, "rows": 100, "restarts": 1, "offsets": {}, "operators": []}
    return {"name": name, "state": state, **counts, **more}


def operator(name: str) -> dict[str, object]:
    return {"name": name, "entries": 10, "stateBytes": 400, "checkpointBytes": 900, "deadRows": 2}


def report(pipelines: list[dict[str, object]]) -> dict[str, object]:
    disk = {"stateDiskUsedBytes": 70, "stateDiskSizeBytes": 100}
    return {"pid": 1, "state": "running", "memoryBytes": 123, **disk, "pipelines": pipelines}


def received(content: dict[str, object], at_seconds: float) -> ReceivedReport:
    return ReceivedReport(msgspec.convert(content, WorkerReport), at_seconds)


def test_pipelines_show_their_state_and_counts(running: Runtime) -> None:
    said = report([pipeline("orders"), pipeline("clicks", "failed"), pipeline("odd", "thinking")])
    running.worker = received(said, running.clock.monotonic_seconds())
    found = samples(render(running)[0])
    assert (found["tidegate_worker_up"], found["tidegate_worker_memory_bytes"]) == (1, 123)
    assert found["tidegate_pipeline_state pipeline=orders state=running"] == 1
    assert found["tidegate_pipeline_state pipeline=orders state=failed"] == 0
    assert found["tidegate_pipeline_state pipeline=clicks state=failed"] == 1
    assert found["tidegate_pipeline_state pipeline=odd state=other"] == 1
    assert found["tidegate_pipeline_batches_total pipeline=orders"] == 3
    assert found["tidegate_pipeline_rows_total pipeline=orders"] == 100
    assert found["tidegate_pipeline_restarts_total pipeline=orders"] == 1
    assert "tidegate_pipeline_lag_messages pipeline=orders" not in found  # it is not known


def test_the_state_of_all_operators_of_a_pipeline_is_added_up(running: Runtime) -> None:
    said = report([pipeline("orders", operators=[operator("sessions"), operator("totals")])])
    running.worker = received(said, running.clock.monotonic_seconds())
    found = samples(render(running)[0])
    assert found["tidegate_pipeline_state_bytes pipeline=orders"] == 800
    assert found["tidegate_pipeline_state_entries pipeline=orders"] == 20
    assert found["tidegate_pipeline_checkpoint_bytes pipeline=orders"] == 1800
    assert found["tidegate_pipeline_dead_rows_total pipeline=orders"] == 4


def dedup(**changed: object) -> dict[str, object]:
    """What an operator that deduplicates has in the worker's report."""
    figures = {"unique": 990, "duplicates": 10, "late": 3, "keys": 990, "bytes": 30_000, "segments": 3}
    filters = {"filterBytes": 1_500, "filterProbes": 2_000, "filterMaybe": 40, "filterFalse": 30}
    return {**figures, **filters, "reads": 40, "lookupSeconds": 0.5, "streamTime": None, **changed}


def test_deduplication_is_added_up_by_pipeline(running: Runtime) -> None:
    """Case 25: duplicates, state size, read latency and filters under our names."""
    operators = [{**operator("orders"), "dedup": dedup()}, {**operator("clicks"), "dedup": dedup(unique=10)}]
    said = report([pipeline("p", operators=[*operators, operator("other")]), pipeline("plain")])
    running.worker = received(said, running.clock.monotonic_seconds())
    found = samples(render(running)[0])
    of = {name.removeprefix("tidegate_pipeline_dedup_"): value for name, value in found.items()}
    assert (of["unique_total pipeline=p"], of["duplicates_total pipeline=p"]) == (1000, 20)
    assert (of["late_total pipeline=p"], of["keys pipeline=p"], of["bytes pipeline=p"]) == (6, 1980, 60_000)
    assert (of["segments pipeline=p"], of["filter_bytes pipeline=p"]) == (6, 3_000)
    assert (of["filter_probes_total pipeline=p"], of["filter_false_total pipeline=p"]) == (4_000, 60)
    assert (of["reads_total pipeline=p"], of["lookup_seconds_total pipeline=p"]) == (80, 1.0)
    assert not [name for name in found if "dedup" in name and "plain" in name]
    assert not [name for name in found if "stream_lag" in name]  # no row has come yet
    assert (
        found["tidegate_worker_state_disk_used_bytes"],
        found["tidegate_worker_state_disk_size_bytes"],
    ) == (
        70,
        100,
    )


def test_the_lag_of_the_stream_is_that_of_the_operator_furthest_behind(running: Runtime) -> None:
    """Case 25: a clock that is wrong shows; a time ahead of the clock is below 0."""
    now_us = running.clock.now_us()
    times = [format_time(now_us - behind * 1_000_000) for behind in (3_600, 60)]
    behind = [{**operator(time), "dedup": dedup(streamTime=time)} for time in times]
    ahead = {**operator("o"), "dedup": dedup(streamTime=format_time(now_us + 86_400_000_000))}
    said = report([pipeline("behind", operators=behind), pipeline("ahead", operators=[ahead])])
    running.worker = received(said, running.clock.monotonic_seconds())
    found = samples(render(running)[0])
    assert found["tidegate_pipeline_dedup_stream_lag_seconds pipeline=behind"] == pytest.approx(3_600, abs=60)
    assert found["tidegate_pipeline_dedup_stream_lag_seconds pipeline=ahead"] == pytest.approx(
        -86_400, abs=60
    )


def test_a_worker_that_fell_silent_is_not_up(running: Runtime) -> None:
    running.worker = received(report([]), running.clock.monotonic_seconds() - 60)
    found = samples(render(running)[0])
    assert found["tidegate_worker_up"] == 0
    assert found["tidegate_worker_report_age_seconds"] >= 60


def test_thousands_of_pipelines_fold_into_a_bounded_number(running: Runtime) -> None:
    said = report([pipeline(f"p{number}") for number in range(2000)])
    running.worker = received(said, running.clock.monotonic_seconds())
    for _ in range(2):  # the second scrape has the same series
        found = samples(render(running)[0])
        rows = {
            name: value for name, value in found.items() if name.startswith("tidegate_pipeline_rows_total")
        }
        assert len(rows) == PIPELINE_LABELS_MAX + 1
        assert sum(rows.values()) == 2000 * 100
        states = {
            name: value
            for name, value in found.items()
            if name.startswith("tidegate_pipeline_state") and "state=running" in name
        }
        assert len(states) == PIPELINE_LABELS_MAX + 1
        assert states["tidegate_pipeline_state pipeline=other state=running"] == 2000 - PIPELINE_LABELS_MAX


def test_a_real_server_counts_what_happens(
    server: RunningServer, http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    before = samples(http.get("/metrics").content)
    http.post(f"/api/v1/topics/{topic}/publish", json={"messages": [{"payload": {"n": n}} for n in range(5)]})
    http.post(f"/api/v1/topics/{topic}/consume", json={"from": "earliest"})
    http.get("/api/v1/nowhere")
    after = samples(http.get("/metrics").content)

    def grew(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    publish = "/api/v1/topics/{topic}/publish"
    assert grew(f"tidegate_http_requests_total method=POST route={publish} status=200") == 1
    assert grew(f"tidegate_http_request_duration_seconds_count route={publish}") == 1
    assert grew("tidegate_messages_published_total tenant=default") == 5
    assert grew("tidegate_messages_consumed_total tenant=default") == 5
    assert grew("tidegate_topic_messages") == 5
    assert grew("tidegate_commit_group_changes_count") >= 1
    assert grew("tidegate_commit_sync_seconds_count") >= 1
    assert after["tidegate_http_requests_in_flight"] >= 1  # the scrape itself
    not_found = [name for name in after if "route=(none)" in name and "status=404" in name]
    assert not_found
    assert topic not in str(after)


def test_the_format_is_the_one_that_is_asked_for(http: httpx.Client) -> None:
    plain = http.get("/metrics")
    assert plain.status_code == 200
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    modern = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")
    names = {family.name for family in parse_openmetrics(modern.text)}  # type: ignore[no-untyped-call]
    assert "tidegate_http_requests" in names


def test_no_secret_is_in_a_scrape_or_in_the_log(server: RunningServer, http: httpx.Client) -> None:
    wrong = "tg_0123456789abcdef_" + "s" * 43
    for path in ("/api/v1/status", f"/{wrong}", f"/enter?code={wrong}", f"/api/v1/topics/{server.token}"):
        http.get(path)
        http.get(path, headers={"Authorization": f"Bearer {wrong}"})
    scraped = http.get("/metrics").text
    assert server.token not in scraped
    assert "ssss" not in scraped
    log_text = (server.home.parent / f"{server.home.name}.server.log").read_text()
    assert server.token not in log_text
    assert "ssssssss" not in log_text
