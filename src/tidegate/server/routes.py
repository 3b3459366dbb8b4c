"""Every endpoint: its method, its path, the function that answers, and who may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tidegate.server import sql, status, topics
from tidegate.server.running import Running

Endpoint = Callable[[Request, Running], Awaitable[Response]]
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint; an open one needs no token."""

    method: str
    path: str
    endpoint: Endpoint
    open: bool = False


ROUTES: list[Route] = [
    Route("GET", "/health", status.health, open=True),
    Route("GET", "/ready", status.ready, open=True),
    Route("GET", f"{API}/status", status.status),
    Route("GET", f"{API}/pipelines", status.list_pipelines),
    Route("GET", f"{API}/pipelines/{{name}}", status.show_pipeline),
    Route("POST", f"{API}/worker/report", status.take_report),
    Route("GET", f"{API}/topics", topics.list_topics),
    Route("POST", f"{API}/topics", topics.create_topic),
    Route("GET", f"{API}/topics/{{topic}}", topics.show_topic),
    Route("DELETE", f"{API}/topics/{{topic}}", topics.delete_topic),
    Route("POST", f"{API}/topics/{{topic}}/publish", topics.publish),
    Route("POST", f"{API}/topics/{{topic}}/consume", topics.consume),
    Route("POST", f"{API}/topics/{{topic}}/plan", topics.plan),
    Route("POST", f"{API}/topics/{{topic}}/read", topics.read),
    Route("POST", f"{API}/sql", sql.run_sql),
]
