"""What is documented and what is there are the same: the table of metrics, the alerts, the dashboard."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.paths import ROOT
from tidegate.telemetry.metric_families import BY_NAME, FAMILIES, Family

DOCS = ROOT / "docs" / "operate"
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))


def series(family: Family) -> set[str]:
    """Return the names under which a family can be asked for."""
    if family.kind != "histogram":
        return {family.name}
    return {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}


ALL_SERIES = {name for family in FAMILIES for name in series(family)}


def row(family: Family) -> str:
    """Return the line of the page's table that a family must have."""
    labels = ", ".join(
        f"`{label.name}` ({', '.join(label.words)})"
        if label.words
        else f"`{label.name}` (at most {label.names_max} and `other`)"
        if label.name in {"tenant", "pipeline", "route"}
        else f"`{label.name}`"
        for label in family.labels
    )
    return f"| `{family.name}` | {family.kind} | {labels or '–'} | {family.help} |"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_metric_is_documented_as_it_is(family: Family) -> None:
    assert row(family) in PAGE.splitlines()


def test_no_metric_is_documented_that_is_not_there() -> None:
    listed = re.findall(r"^\| `(tidegate_\w+)`", PAGE, flags=re.MULTILINE)
    assert listed
    assert sorted(listed) == sorted(BY_NAME)


def test_every_alert_asks_for_series_that_exist() -> None:
    alerts = PAGE.partition("## Alerts")[2]
    asked = set(re.findall(r"\btidegate_\w+", alerts))
    assert len(asked) > 10
    assert sorted(asked - ALL_SERIES) == []


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_every_panel_asks_for_series_that_exist() -> None:
    for expression in [*expressions(), json.dumps(DASHBOARD["templating"])]:
        asked = set(re.findall(r"\btidegate_\w+", expression))
        assert sorted(asked - ALL_SERIES) == [], expression
    assert all("tidegate_" in expression for expression in expressions())


def test_every_label_in_a_panel_or_alert_is_one_of_its_metric() -> None:
    for expression in [*expressions(), *re.findall(r"expr: (.+)", PAGE)]:
        for name, inside in re.findall(r"\b(tidegate_\w+)\{([^}]*(?:\{[^}]*\}[^}]*)*)\}", expression):
            (family,) = [family for family in FAMILIES if name in series(family)]
            used = set(re.findall(r"(\w+)\s*[=!]~?", inside)) - {"instance", "job", "le"}
            assert used <= {label.name for label in family.labels}, expression


def test_rates_are_of_counters_and_never_of_gauges() -> None:
    counters = {family.name for family in FAMILIES if family.kind == "counter"}
    counters |= {name for family in FAMILIES if family.kind == "histogram" for name in series(family)}
    for expression in [*expressions(), *re.findall(r"expr: (.+)", PAGE)]:
        for name in re.findall(r"\b(?:rate|increase)\(\s*(tidegate_\w+)", expression):
            assert name in counters, expression


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("traffic", "tidegate_http_requests_total"),
        ("latency", "tidegate_http_request_duration_seconds_bucket"),
        ("errors", "tidegate_http_refused_total"),
        ("commits", "tidegate_commit_sync_seconds_bucket"),
        ("topics", "tidegate_topics"),
        ("groups", "tidegate_group_lag_messages"),
        ("pipeline lag", "tidegate_pipeline_lag_messages"),
        ("catalog", "tidegate_catalog_up"),
        ("disk", "tidegate_disk_free_bytes"),
        ("memory", "tidegate_process_memory_bytes"),
        ("SQL", "tidegate_sql_statement_duration_seconds_bucket"),
        ("statements", "tidegate_sql_statements_total"),
        ("rows", "tidegate_rows_written_total"),
        ("streams", "tidegate_stream_flush_duration_seconds_bucket"),
        ("live", "tidegate_live_subscriptions"),
        ("backups", "tidegate_backup_last_success_timestamp_seconds"),
        ("duplicates", "tidegate_pipeline_dedup_duplicates_total"),
        ("state disk", "tidegate_worker_state_disk_used_bytes"),
    ],
)
def test_the_dashboard_covers(subject: str, name: str) -> None:
    assert any(re.search(rf"\b{name}\b", expression) for expression in expressions()), subject


def test_panels_have_ids_of_their_own_and_lie_side_by_side() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
