"""Who may call each endpoint: the table that the tests hold the server against, written by hand.

    r   StreamDataReader          w   StreamDataWriter          a   StreamDataAdmin
    p   AdminPanelManagement of a tenant                        i   the same in `default`: of the instance

The last column is what someone who may is answered for the made-up names and bodies of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

EVERYONE = "rwapi"
OPEN = "open"


@dataclass(frozen=True)
class Row:
    """One endpoint: who may, what is sent, and what someone who may is answered."""

    method: str
    path: str
    operation: str
    who: str
    body: Any
    status: int

    def ask(self, http: httpx.Client, names: dict[str, str], **headers: str) -> httpx.Response:
        """Call the endpoint with names in its path."""
        path = self.path.format(**names)
        # From elsewhere: the machine's own metrics collector needs no token, and is no part of this.
        sent = {"X-Forwarded-For": "203.0.113.9", **headers}
        body: dict[str, Any] = {} if self.body is None else {"json": self.body}
        return http.request(self.method, path, headers=sent, **body)


def api(method: str, path: str, operation: str, who: str, status: int, body: Any = None) -> Row:
    return Row(method, f"/api/v1{path}", operation, who, body, status)


TOPIC = "/topics/{topic}"
USER = "/users/{user}"
BACKUP = "/backups/{backup}"
TABLE = [
    Row("GET", "/health", OPEN, EVERYONE, None, 200),
    Row("GET", "/ready", OPEN, EVERYONE, None, 200),
    Row("GET", "/enter", OPEN, EVERYONE, None, 401),  # without a code: LINK_WRONG
    Row("POST", "/enter", OPEN, EVERYONE, {}, 415),  # takes a form
    Row("GET", "/", "status.show", EVERYONE, None, 200),
    Row("POST", "/leave", "me.show", EVERYONE, None, 422),  # takes a cookie
    Row("GET", "/docs", "docs.show", EVERYONE, None, 200),
    Row("GET", "/docs/{file}", "docs.show", EVERYONE, None, 404),
    Row("GET", "/openapi.json", "docs.show", EVERYONE, None, 200),
    Row("GET", "/metrics", "metrics.show", "i", None, 200),
    api("GET", "/me", "me.show", EVERYONE, 200),
    api("GET", "/status", "status.show", EVERYONE, 200),
    api("GET", "/pipelines", "pipeline.list", EVERYONE, 200),
    api("GET", "/pipelines/{name}", "pipeline.show", EVERYONE, 404),
    api("POST", "/links", "link.create", EVERYONE, 201),
    api("GET", "/topics", "topic.list", EVERYONE, 200),
    api("GET", TOPIC, "topic.show", EVERYONE, 404),
    api("POST", f"{TOPIC}/publish", "topic.publish", "wapi", 404, {"messages": [{"payload": 1}]}),
    api("POST", f"{TOPIC}/consume", "topic.consume", "rapi", 404, {}),
    api("POST", f"{TOPIC}/plan", "topic.plan", "rapi", 404, {"start": "earliest"}),
    api("POST", f"{TOPIC}/read", "topic.read", "rapi", 404, {"partition": 0, "from": 0, "to": 1}),
    api("PATCH", TOPIC, "topic.change", "api", 404, {"partitions": 2}),
    api("POST", f"{TOPIC}/clear", "topic.clear", "api", 404),
    api("POST", f"{TOPIC}/ack", "topic.ack", "rapi", 404, {"group": "g", "leases": []}),
    api("POST", f"{TOPIC}/nack", "topic.ack", "rapi", 404, {"group": "g", "leases": []}),
    api("POST", f"{TOPIC}/extend", "topic.ack", "rapi", 404, {"group": "g", "leases": []}),
    api("POST", f"{TOPIC}/reset", "topic.reset", "api", 404, {"group": "g", "to": "earliest"}),
    api("GET", f"{TOPIC}/groups", "topic.groups", EVERYONE, 404),
    api("DELETE", f"{TOPIC}/groups/{{group}}", "topic.reset", "api", 404),
    api("POST", f"{TOPIC}/parts", "topic.publish", "wapi", 404),
    api("POST", f"{TOPIC}/commit", "topic.publish", "wapi", 404, {"writer": "w", "batch": 0, "parts": []}),
    api("POST", f"{TOPIC}/abort", "topic.publish", "wapi", 404, {"writer": "w", "batch": 0, "parts": []}),
    api("POST", "/sql", "sql.run", EVERYONE, 422, {"sql": "nonsense"}),
    api("POST", "/topics", "topic.create", "api", 422, {"name": "a", "partitions": 0}),
    api("DELETE", TOPIC, "topic.delete", "api", 404),
    api("GET", "/jobs", "job.list", "api", 200),
    api("GET", "/jobs/{job}", "job.show", "api", 404),
    api("GET", "/users", "user.list", "pi", 200),
    api("POST", "/users", "user.create", "pi", 422, {"name": "-"}),
    api("GET", USER, "user.show", "pi", 404),
    api("PATCH", USER, "user.change", "pi", 404, {"enabled": True}),
    api("DELETE", USER, "user.delete", "pi", 404),
    api("GET", f"{USER}/tokens", "token.list", "pi", 404),
    api("POST", f"{USER}/tokens", "token.create", "pi", 404, {}),
    api("DELETE", f"{USER}/tokens/{{token}}", "token.revoke", "pi", 404),
    api("GET", "/audit", "audit.list", "pi", 200),
    api("GET", "/tenants", "tenant.list", "i", 200),
    api("POST", "/tenants", "tenant.create", "i", 422, {"name": "-"}),
    api("GET", "/tenants/{tenant}/quota", "tenant.list", "i", 404),
    api("PATCH", "/tenants/{tenant}/quota", "tenant.change", "i", 404, {"topics": 1}),
    api("GET", "/users/{user}/quota", "user.show", "pi", 404),
    api("PATCH", "/users/{user}/quota", "user.change", "pi", 404, {"requestsPerSecond": 1}),
    api("GET", "/quota", "quota.show", EVERYONE, 200),
    api("POST", "/tenants/{tenant}/enable", "tenant.enable", "i", 404),
    api("POST", "/tenants/{tenant}/disable", "tenant.disable", "i", 404),
    api("POST", "/worker/report", "worker.report", "i", 422, {}),
    api("POST", "/backups", "backup.create", "i", 422, {"colour": "red"}),
    api("POST", f"{BACKUP}/finish", "backup.change", "i", 404, {"file": "a", "bytes": 1}),
    api("DELETE", BACKUP, "backup.change", "i", 404),
]

# Names that nobody ever made, of the shape that real ones have.
NOWHERE = {
    "topic": "no.such",
    "group": "no-such",
    "name": "no-such",
    "user": "nobody",
    "token": "0123456789abcdef",
    "job": "0" * 24,
    "tenant": "nowhere",
    "backup": "0" * 24,
    "file": "no-such.js",
}
