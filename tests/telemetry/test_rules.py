"""The rules file for Prometheus has its shape, asks for what is there, and has the runbook's thresholds."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.paths import ROOT
from tests.telemetry.test_documented import ALL_SERIES
from tests.test_docs import anchors
from tidegate.telemetry.metric_families import BY_NAME

RULES: dict[str, Any] = yaml.safe_load((ROOT / "docs/operate/prometheus-rules.yml").read_text("utf-8"))
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]
}
DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+")
# What is no label or metric in an expression.
WORDS = {"sum", "by", "on", "and", "or", "rate", "increase"}


def test_the_file_has_the_shape_that_prometheus_takes() -> None:
    assert set(RULES) == {"groups"}
    assert len(ALERTS) == sum(len(group["rules"]) for group in RULES["groups"])
    for group in RULES["groups"]:
        assert set(group) == {"name", "rules"}
    for name, rule in ALERTS.items():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert re.fullmatch(r"[A-Za-z_]\w*", name)
        assert isinstance(rule["expr"], str)
        assert DURATION.fullmatch(rule.get("for", "1m")), name
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.parametrize("rule", ALERTS.values(), ids=list(ALERTS))
def test_every_alert_asks_for_series_and_labels_that_exist(rule: dict[str, Any]) -> None:
    asked = set(re.findall(r"\btidegate_\w+", rule["expr"]))
    assert asked
    assert sorted(asked - ALL_SERIES) == []
    labels = {label.name for name in asked for label in BY_NAME[name].labels} | {"instance", "job"}
    named = set(re.findall(r"[a-z_]+", re.sub(r"tidegate_\w+|\[\w+\]", "", rule["expr"]))) - WORDS
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert named | shown <= labels


def test_counters_are_asked_for_their_rate_and_gauges_never() -> None:
    for rule in ALERTS.values():
        rated = set(re.findall(r"\b(?:rate|increase)\((tidegate_\w+)\[", rule["expr"]))
        asked = set(re.findall(r"\btidegate_\w+", rule["expr"]))
        assert rated == {name for name in asked if BY_NAME[name].kind == "counter"}, rule["alert"]


@pytest.mark.parametrize(
    ("alert", "metric", "threshold"),
    [
        ("TidegateDedupReadsSlow", "tidegate_pipeline_dedup_lookup_seconds_total", "> 0.1"),  # 100 ms
        ("TidegateDedupStateTooLarge", "tidegate_pipeline_state_bytes", "> 0.80"),
        ("TidegateDedupFallsBehind", "tidegate_pipeline_lag_messages", "> 10000"),
        ("TidegateDedupDuplicatesRise", "tidegate_pipeline_dedup_duplicates_total", "> 0.0001"),  # 0.01 %
        ("TidegateDedupDiskFilling", "tidegate_worker_state_disk_used_bytes", "> 0.70"),
    ],
)
def test_the_thresholds_are_those_of_the_runbook(alert: str, metric: str, threshold: str) -> None:
    """Case 25: read latency, state size, lag, duplicate rate, and the disk alert of the risk table."""
    expression = ALERTS[alert]["expr"]
    assert metric in expression
    assert re.search(rf"{re.escape(threshold)}(?![\d.])", expression)
    least = re.search(r"and increase\(\w+\[5m\]\) > (\d+)", expression)
    others = {"0", least[1]} if least else {"0"}
    assert set(re.findall(r"> ([\d.]+)", expression)) - others == {threshold.removeprefix("> ")}


def test_slow_reads_are_no_alarm_where_there_are_hardly_any() -> None:
    expression = " ".join(ALERTS["TidegateDedupReadsSlow"]["expr"].split())
    assert expression.endswith("and increase(tidegate_pipeline_dedup_reads_total[5m]) > 1000")


def test_every_alert_says_what_is_so_and_where_to_go_on() -> None:
    for name, rule in ALERTS.items():
        said = rule["annotations"]
        assert set(said) == {"summary", "description", "runbook_url"}, name
        assert "$value" in said["summary"], name
        page, _, anchor = said["runbook_url"].partition("#")
        assert page == "docs/operate/dedup.md"
        assert anchor in anchors((ROOT / page).read_text("utf-8")), name
