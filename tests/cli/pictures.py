"""Status answers to draw, as the server gives them."""

from __future__ import annotations

from typing import Any

from tidegate.cli.console.status_feed import CounterHistory
from tidegate.cli.console.view import Picture


def status(seconds: int = 0, *, topics: int = 1, worker: bool = True) -> dict[str, Any]:
    """Return a status answer after so many seconds at 200 messages and 180 rows a second."""
    return {
        "version": "0.1.0",
        "home": "/srv/tide",
        "pid": 4711,
        "uptimeSeconds": 100.0 + seconds,
        "memoryBytes": 210_000_000,
        "diskFreeBytes": 34_000_000_000,
        "topics": [
            {
                "name": f"demo.readings{number or ''}",
                "partitions": [
                    {"partition": 0, "start": 0, "end": 100 * seconds},
                    {"partition": 1, "start": 0, "end": 100 * seconds},
                ],
                "messages": 200 * seconds,
                "bytes": 24_000 * seconds,
            }
            for number in range(topics)
        ],
        "messagesTotal": 200 * seconds * topics,
        "messagesPerSecond": 200.0 * topics,
        "worker": {
            "pid": 4712,
            "memoryBytes": 890_000_000,
            "sparkVersion": "4.2.0",
            "seenSecondsAgo": 0.4,
            "state": "running",
        }
        if worker
        else None,
        "pipelines": [
            {
                "name": "readings",
                "state": "running",
                "batches": seconds,
                "rows": 180 * seconds,
                "rowsPerSecond": 180.0,
                "lag": 20 * seconds,
                "lastBatchSeconds": 0.8,
                "error": None,
                "restarts": 0,
                "topic": "demo.readings",
                "table": "readings",
            }
        ]
        if worker
        else [],
        "tables": [{"name": "readings", "version": seconds, "files": seconds, "bytes": 5_000 * seconds}],
    }


def history(seconds: int, *, topics: int = 1) -> CounterHistory:
    """Return a history of one sample a second."""
    kept = CounterHistory()
    for second in range(seconds):
        kept.add(status(second, topics=topics), float(second))
    return kept


def picture(seconds: int = 30, *, topics: int = 1, size: tuple[int, int] = (100, 40)) -> Picture:
    """Return a picture of a system that runs."""
    return Picture(
        home="/srv/tide",
        url="http://127.0.0.1:8787",
        status=status(seconds, topics=topics),
        history=history(seconds + 1, topics=topics),
        commands=["tidegate sql …", "tidegate topic consume …", "tidegate pipeline list"],
        size=size,
    )
