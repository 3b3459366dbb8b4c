"""Metrics: names, units and bounds hold, the formats parse, and what happens is counted once."""

from __future__ import annotations

import threading
import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from tidegate.telemetry.metric_families import BY_NAME, FAMILIES, ROUTE_LABELS_MAX, TENANT_LABELS_MAX, Family
from tidegate.telemetry.metrics import Metrics

# https://prometheus.io/docs/practices/naming: base units only.
BASE_UNITS = {"", "seconds", "bytes", "messages", "changes"}
PUBLISH = "/api/v1/topics/{topic}/publish"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(time.monotonic)


def samples(metrics: Metrics, more: Collector | None = None) -> dict[str, float]:
    """Return every sample as `name{label=value,…}`."""
    text = metrics.render(more)[0].decode()
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_name_says_kind_and_unit(family: Family) -> None:
    assert family.name.startswith("tidegate_")
    assert family.name == family.name.lower()
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert family.unit in BASE_UNITS
    if family.unit:
        assert family.name.removesuffix("_total").endswith(f"_{family.unit}")
    for wrong in ("_ms", "_milliseconds", "_kb", "_mb", "_count", "_sum", "_bucket", "_created"):
        assert not family.name.removesuffix("_total").endswith(wrong)
    assert bool(family.buckets) == (family.kind == "histogram")
    assert list(family.buckets) == sorted(set(family.buckets))
    assert family.help.endswith(".")


def test_every_label_has_a_bound_and_none_is_private() -> None:
    labels = [label for family in FAMILIES for label in family.labels]
    assert all(bool(label.words) != bool(label.names_max) for label in labels)
    assert not {label.name for label in labels} & {"topic", "user", "token", "address", "table", "group"}
    assert max(len(label.words) or label.names_max + 1 for label in labels) <= 501


def test_names_are_there_once() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    # the series of a histogram must not meet another family's name
    for family in FAMILIES:
        for suffix in ("_bucket", "_sum", "_count", "_total") if family.kind == "histogram" else ():
            assert family.name + suffix not in BY_NAME


def test_both_formats_parse_and_have_every_counted_family_once(metrics: Metrics) -> None:
    metrics.observe_request(PUBLISH, "POST", 200, 0.002, 10, 20)
    metrics.count_published("default", 1)
    metrics.count_consumed("default", 1, 10)
    plain, plain_type = metrics.render()
    modern, modern_type = metrics.render(accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
    assert modern_type.startswith("application/openmetrics-text; version=1.0.0")
    assert modern.endswith(b"# EOF\n")
    expected = {family.name for family in FAMILIES if family.source == "event"}
    text_names = [line.split()[2] for line in plain.decode().splitlines() if line.startswith("# TYPE")]
    assert sorted(text_names) == sorted(expected)
    found = [
        family.name + ("_total" if family.type == "counter" else "")
        for family in parse_openmetrics(modern.decode())  # type: ignore[no-untyped-call]
    ]
    assert sorted(found) == sorted(expected)
    assert {family.type for family in parse_text(plain.decode())} <= {"counter", "gauge", "histogram"}
    assert b"_created" not in plain + modern


def test_a_request_is_counted_by_its_labels_and_its_duration(metrics: Metrics) -> None:
    for seconds in (0.0004, 0.002, 0.002, 99.0):
        metrics.observe_request(PUBLISH, "POST", 200, seconds, received_bytes=5, sent_bytes=7)
    metrics.observe_request(PUBLISH, "POST", 429, 0.002)
    found = samples(metrics)
    total = "tidegate_http_requests_total method=POST route=" + PUBLISH
    assert (found[f"{total} status=200"], found[f"{total} status=429"]) == (4, 1)
    duration = "tidegate_http_request_duration_seconds"
    assert found[f"{duration}_bucket le=0.0005 route={PUBLISH}"] == 1
    assert found[f"{duration}_bucket le=0.0025 route={PUBLISH}"] == 4
    assert found[f"{duration}_bucket le=60.0 route={PUBLISH}"] == 4
    assert found[f"{duration}_bucket le=+Inf route={PUBLISH}"] == 5
    assert found[f"{duration}_count route={PUBLISH}"] == 5
    assert found[f"{duration}_sum route={PUBLISH}"] == pytest.approx(99.0064)
    assert found["tidegate_http_received_bytes_total"] == 20
    assert found["tidegate_http_sent_bytes_total"] == 28


def test_a_duration_on_a_bound_belongs_to_it(metrics: Metrics) -> None:
    metrics.observe_request("/health", "GET", 200, 0.001)
    found = samples(metrics)
    assert found["tidegate_http_request_duration_seconds_bucket le=0.001 route=/health"] == 1
    assert found["tidegate_http_request_duration_seconds_bucket le=0.0005 route=/health"] == 0


def test_ten_thousand_tenants_fold_into_a_bounded_number(metrics: Metrics) -> None:
    for number in range(10_000):
        metrics.count_published(f"tenant{number}", 2)
        metrics.count_consumed(f"tenant{number}", 1, 10)
    for name, each in (("published", 2), ("consumed", 1)):
        series = {
            key: value
            for key, value in samples(metrics).items()
            if key.startswith(f"tidegate_messages_{name}_total")
        }
        assert len(series) == TENANT_LABELS_MAX + 1
        assert sum(series.values()) == 10_000 * each
        assert series[f"tidegate_messages_{name}_total tenant=tenant0"] == each
        assert series[f"tidegate_messages_{name}_total tenant=other"] == (10_000 - TENANT_LABELS_MAX) * each


def test_odd_methods_statuses_and_paths_fold_too(metrics: Metrics) -> None:
    for number in range(10_000):
        metrics.observe_request(f"/made/up/{number}", f"M{number}", number + 1000, 0.001)
    metrics.observe_request("", "GET", 404, 0.001)
    series = [key for key in samples(metrics) if key.startswith("tidegate_http_requests_total")]
    assert len(series) <= ROUTE_LABELS_MAX + 2
    values = {part for key in series for part in key.split()[1:]}
    assert {part for part in values if part.startswith("method=")} == {"method=other", "method=GET"}
    assert {part for part in values if part.startswith("status=")} == {"status=other", "status=404"}


def test_a_request_without_a_route_is_counted_as_none(metrics: Metrics) -> None:
    metrics.observe_request("", "GET", 404, 0.001)
    assert samples(metrics)["tidegate_http_requests_total method=GET route=(none) status=404"] == 1


def test_known_words_are_there_from_the_start(metrics: Metrics) -> None:
    found = samples(metrics)
    for reason in ("token", "forbidden", "busy", "guesses"):
        assert found[f"tidegate_http_refused_total reason={reason}"] == 0
    assert found["tidegate_corrupt_frames_total"] == 0
    metrics.count_refusal("busy")
    metrics.corrupt_frames.inc()
    found = samples(metrics)
    assert found["tidegate_http_refused_total reason=busy"] == 1
    assert found["tidegate_corrupt_frames_total"] == 1


def test_a_catalog_that_does_not_answer_is_down_until_it_does(metrics: Metrics) -> None:
    assert samples(metrics)["tidegate_catalog_up"] == 1
    metrics.observe_catalog(5.0, answered=False)
    found = samples(metrics)
    assert (found["tidegate_catalog_up"], found["tidegate_catalog_failures_total"]) == (0, 1)
    metrics.observe_catalog(0.01, answered=True)
    found = samples(metrics)
    assert (found["tidegate_catalog_up"], found["tidegate_catalog_failures_total"]) == (1, 1)
    assert found["tidegate_catalog_call_duration_seconds_count"] == 2


def test_a_commit_is_counted_by_size_and_time(metrics: Metrics) -> None:
    metrics.observe_commit(changes=3, size_bytes=5000, sync_seconds=0.0007)
    found = samples(metrics)
    assert found["tidegate_commit_group_changes_bucket le=2.0"] == 0
    assert found["tidegate_commit_group_changes_bucket le=4.0"] == 1
    assert found["tidegate_commit_group_bytes_sum"] == 5000
    assert found["tidegate_commit_sync_seconds_bucket le=0.001"] == 1


def statements(metrics: Metrics) -> tuple[float, float, float]:
    found = samples(metrics)
    return (
        found["tidegate_sql_statements_waiting"],
        found["tidegate_sql_statements_running"],
        found["tidegate_sql_statement_duration_seconds_count"],
    )


def test_a_statement_waits_then_runs_then_is_gone(metrics: Metrics) -> None:
    with metrics.statement() as turn:
        assert statements(metrics) == (1, 0, 0)
        assert turn.run(statements, metrics) == (0, 1, 0)
    assert statements(metrics) == (0, 0, 1)


def test_a_statement_that_fails_or_never_runs_leaves_no_trace_in_the_gauges(metrics: Metrics) -> None:
    with pytest.raises(ZeroDivisionError), metrics.statement() as turn:
        turn.run(lambda: 1 / 0)
    with metrics.statement():
        pass  # its caller left before its turn came
    assert statements(metrics) == (0, 0, 1)


def test_a_job_is_counted_while_it_runs_and_by_its_end(metrics: Metrics) -> None:
    for done in (True, False):
        metrics.begin_job()
        assert samples(metrics)["tidegate_jobs_running"] == 1
        metrics.end_job(done=done)
    found = samples(metrics)
    assert found["tidegate_jobs_running"] == 0
    assert found["tidegate_jobs_finished_total outcome=done"] == 1
    assert found["tidegate_jobs_finished_total outcome=failed"] == 1


def test_a_statement_is_counted_by_what_it_does_and_how_it_ends(metrics: Metrics) -> None:
    metrics.count_statement("insert", "done")
    metrics.count_statement("insert", "done")
    metrics.count_statement("insert", "refused")
    metrics.count_statement("merge", "failed")  # a kind that is not in the table
    found = samples(metrics)
    total = "tidegate_sql_statements_total kind="
    assert found[f"{total}insert outcome=done"] == 2
    assert found[f"{total}insert outcome=refused"] == 1
    assert found[f"{total}other outcome=failed"] == 1
    assert found[f"{total}select outcome=done"] == 0, "known words are there at once"


def test_rows_are_counted_by_tenant_and_kind_of_table_within_bounds(metrics: Metrics) -> None:
    metrics.count_rows_written("default", "USER", 3)
    metrics.count_rows_written("default", "user", 2)
    metrics.count_rows_written("default", "STREAM", 7)
    for number in range(TENANT_LABELS_MAX + 5):
        metrics.count_rows_written(f"tenant-{number}", "SHARED", 1)
    found = samples(metrics)
    total = "tidegate_rows_written_total kind="
    assert found[f"{total}user tenant=default"] == 5
    assert found[f"{total}stream tenant=default"] == 7
    assert found[f"{total}shared tenant=other"] == 6
    assert sum(key.startswith(total) for key in found) == 2 + TENANT_LABELS_MAX


def test_streams_are_counted_and_their_writers_asked_for_at_each_scrape(metrics: Metrics) -> None:
    writers: list[str] = []
    metrics.stream_writers.set_function(lambda: len(writers))
    metrics.count_stream_append(100, 12_345)
    metrics.stream_flushes.observe(0.02)
    metrics.windows_evicted.inc(4)
    assert samples(metrics)["tidegate_stream_writers_open"] == 0
    writers += ["one", "two"]
    found = samples(metrics)
    assert found["tidegate_stream_writers_open"] == 2
    assert found["tidegate_stream_appended_rows_total"] == 100
    assert found["tidegate_stream_appended_bytes_total"] == 12_345
    assert found["tidegate_stream_flush_duration_seconds_count"] == 1
    assert found["tidegate_stream_windows_evicted_total"] == 4


def test_live_sockets_come_and_go_and_what_they_got_stays_counted(metrics: Metrics) -> None:
    metrics.live_connections.inc()
    metrics.live_connections.inc()
    metrics.live_subscriptions.inc(3)
    metrics.live_changes.inc(50)
    metrics.live_lagged.inc()
    metrics.live_slow_closed.inc()
    metrics.live_subscriptions.dec(2)
    metrics.live_connections.dec()
    found = samples(metrics)
    assert (found["tidegate_live_connections"], found["tidegate_live_subscriptions"]) == (1, 1)
    assert found["tidegate_live_changes_sent_total"] == 50
    assert found["tidegate_live_lagged_total"] == 1
    assert found["tidegate_live_slow_closed_total"] == 1


def test_the_last_backup_is_shown(metrics: Metrics) -> None:
    metrics.observe_backup(finished_seconds=1_800_000_000, took_seconds=12.5, size_bytes=10**9)
    metrics.backup_failures.inc()
    found = samples(metrics)
    assert found["tidegate_backup_last_success_timestamp_seconds"] == 1_800_000_000
    assert found["tidegate_backup_last_duration_seconds"] == 12.5
    assert found["tidegate_backup_last_size_bytes"] == 10**9
    assert found["tidegate_backup_failures_total"] == 1


def test_two_servers_in_one_program_do_not_mix(metrics: Metrics) -> None:
    other = Metrics(time.monotonic)
    metrics.count_published("default", 5)
    assert "tidegate_messages_published_total tenant=default" not in samples(other)


def test_a_scrape_during_requests_sees_counts_that_agree(metrics: Metrics) -> None:
    ended = threading.Event()

    def load() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            metrics.observe_request(f"/r{number % 50}", "GET", 200 + number % 7, number % 3)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(20):
            found = samples(metrics)
            for key, value in found.items():
                if key.startswith("tidegate_http_request_duration_seconds_count"):
                    route = key.partition("route=")[2]
                    infinite = f"tidegate_http_request_duration_seconds_bucket le=+Inf route={route}"
                    assert found[infinite] == value
    finally:
        ended.set()
        thread.join()
