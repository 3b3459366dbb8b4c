"""The example of a consumer that drops duplicates, on a real server."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import tidegate
from tests.paths import ROOT
from tidegate.testing.server import running_server

EXAMPLE = ROOT / "examples" / "dedup_consumer.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_dedup_consumer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def order(number: int, at: str) -> dict[str, Any]:
    return {"payload": {"id": f"o-{number}", "at": at}}


def test_orders_come_once_also_when_a_page_is_given_again(tmp_path: Path) -> None:
    """Cases 18 and 20: the consumer leaves before it acknowledges, and gets the page again."""
    module = example()
    seen = tmp_path / "seen"
    with running_server(tmp_path / "home") as server, tidegate.connect(home=server.home) as client:
        topic = client.topics.create("app.orders", partitions=2)
        topic.publish([order(1, "2026-01-01T10:00:00Z"), order(2, "2026-01-01T10:01:00Z")])
        topic.publish([order(1, "2026-01-01T10:02:00Z")])
        with tidegate.Deduplicator("orders", seen, module.RETENTION) as dedup:
            left = module.new_orders(topic, dedup, 0)
            first = next(left)["payload"]["id"]
            del left
        topic.reset(module.GROUP, "earliest")
        topic.publish([order(2, "2026-01-02T10:00:00+02:00"), order(3, "2026-01-01T10:00:00Z")])
        with tidegate.Deduplicator("orders", seen, module.RETENTION) as dedup:
            found = sorted(one["payload"]["id"] for one in module.new_orders(topic, dedup, 0))
            assert first in found
            assert found == ["o-1", "o-2", "o-3"]
            assert not list(module.new_orders(topic, dedup, 0))
