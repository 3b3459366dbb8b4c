"""Random requests over the whole description, against a real server: the short test and the long run.

Schemathesis makes them from the description: valid ones, ones that break a limit that is told, and chains in
which one call uses what another gave. Nothing may answer 500, and every answer is held against the
description: its status, its content type, its headers, its fields (all of them and no others).

    python -m tests.server.fuzz --minutes 30 [--seed 7]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from tests.paths import ROOT
from tidegate.server.http.responses import ARROW_STREAM
from tidegate.server.openapi.document import describe_api
from tidegate.settings import load_settings
from tidegate.testing.server import RunningServer, running_server

TENANT = "fuzz"
TOPIC = "app.events"
SEED = 20_260_101
# Small limits, so that what breaks them is small, too; many wrong tokens are part of the game.
ENVIRON = {
    "TIDEGATE_SERVER_MESSAGES_MAX": "20",
    "TIDEGATE_SERVER_BODY_BYTES_MAX": "100000",
    "TIDEGATE_SERVER_WAIT_MS_MAX": "20",
    "TIDEGATE_SERVER_PAGE_ROWS_MAX": "50",
    "TIDEGATE_TOPICS_PARTITIONS_MAX": "8",
    "TIDEGATE_AUTH_GUESSES_MAX": "100000",
    "TIDEGATE_QUERY_TIMEOUT_SECONDS": "5",
}
# What a random text would not find: names that are there, and statements that run.
WORDS = {
    "topics": [TOPIC, "app.other", "app.gone"],
    "users": ["alice", "reader", "nobody"],
    "statements": [
        "SELECT ?",
        "SELECT 1 AS a, 'x' AS b, NULL AS c",
        "SELECT * FROM lake.nowhere",
        "SELECT CAST('2026-01-01' AS TIMESTAMP) AS t, 1.5::DECIMAL(4,2) AS d, [1, 2] AS l",
        "SELECT 'NaN'::DOUBLE, 'inf'::DOUBLE, 170141183460469231731687303715884105727::HUGEINT",
        "SELECT {'a': 1} AS s, MAP {'k': 1} AS m, '\\xff'::BLOB AS b, INTERVAL 1 DAY AS i",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT * FROM r",
        "SELECT 1; SELECT 2",
        "DELETE FROM lake.nowhere",
    ],
}
SETTINGS = """
seed = {seed}
hooks = "tests.server.fuzz_hooks"

[checks.positive_data_acceptance]
enabled = false  # a text that is no statement is valid by any schema

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 408, 409, 413, 415, 416, 422, 429]

[generation]
database = "none"

[dictionaries]
topics = {{ values = {topics} }}
users = {{ values = {users} }}
statements = {{ values = {statements} }}
tokens = {{ values = {tokens} }}
backups = {{ values = {backups} }}
jobs = {{ values = {jobs} }}

[parameters]
"path.topic" = {{ dictionary = "topics", probability = 0.6 }}
"path.user" = {{ dictionary = "users", probability = 0.6 }}
"path.token" = {{ dictionary = "tokens", probability = 0.6 }}
"path.backup" = {{ dictionary = "backups", probability = 0.6 }}
"path.job" = {{ dictionary = "jobs", probability = 0.6 }}
"body.sql" = {{ dictionary = "statements", probability = 0.6 }}
"""


@dataclass(frozen=True)
class Caller:
    """Who sends the requests."""

    name: str
    token: str | None = None
    tenant: str | None = None
    accept: str | None = None

    def headers(self) -> dict[str, str]:
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        given |= {"X-Tenant": self.tenant} if self.tenant else {}
        return given | ({"Accept": self.accept} if self.accept else {})


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    passed: bool
    text: str


def description() -> dict[str, Any]:
    """Describe the server under test, strictly; the tenant is the caller's, not the fuzzer's."""
    described = describe_api(load_settings(None, ENVIRON), closed_answers=True)
    for path in described["paths"].values():
        for operation in path.values():
            operation["parameters"] = [
                told for told in operation["parameters"] if told != {"$ref": "#/components/parameters/Tenant"}
            ]
    return described


@dataclass(frozen=True)
class Cast:
    """Everyone who calls, and the words for what they can find."""

    admin: Caller  # of the instance, at work in the first tenant
    guest: Caller  # of the instance, at work in another tenant, and asks for Arrow
    reader: Caller
    words: dict[str, list[str]]


def furnish(server: RunningServer) -> Cast:
    """Make what requests can find (again, where an earlier run removed it)."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {server.token}"
        # 1. the first tenant: what runs there, and an administrator who is not the home's own
        _fill(http)
        report = {"name": "meters", "state": "running", "topic": TOPIC, "offsets": {TOPIC: {"0": 1}}}
        _post(http, "/api/v1/worker/report", {"pid": 7, "state": "running", "pipelines": [report]})
        admin = _token(http, "fuzzer", "AdminPanelManagement")
        token = _post(http, "/api/v1/users/alice/tokens", {})["id"]
        begun = http.post("/api/v1/backups", json={}).json()
        # 2. another tenant
        http.post("/api/v1/tenants", json={"name": TENANT})
        _post(http, f"/api/v1/tenants/{TENANT}/enable", {})
        http.headers["X-Tenant"] = TENANT
        _fill(http)
        reader = _token(http, "reader", "reader")
    made = {"tokens": token, "backups": begun.get("id", "none"), "jobs": begun.get("job", "none")}
    return Cast(
        Caller("an administrator", admin),
        Caller("a guest", server.token, TENANT, f"{ARROW_STREAM}, application/json"),
        Caller("a reader", reader),
        WORDS | {name: [word, "none"] for name, word in made.items()},
    )


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(path, json=body)
    answer.raise_for_status()
    content: dict[str, Any] = answer.json()
    return content


def _fill(http: httpx.Client) -> None:
    http.post("/api/v1/topics", json={"name": TOPIC, "partitions": 2})
    messages = [{"key": f"k{number}", "payload": {"n": number}} for number in range(10)]
    _post(http, f"/api/v1/topics/{TOPIC}/publish", {"messages": messages})
    http.post("/api/v1/users", json={"name": "alice"})


def _token(http: httpx.Client, user: str, role: str) -> str:
    http.post("/api/v1/users", json={"name": user})
    changed = http.patch(f"/api/v1/users/{user}", json={"roles": [role], "enabled": True})
    changed.raise_for_status()
    return str(_post(http, f"/api/v1/users/{user}/tokens", {})["token"])


@dataclass(frozen=True)
class Run:
    """How to look: for how long, until how much is wrong, with which seed, at which operations (or all)."""

    seconds: int
    seed: int = SEED
    failures_max: int = 20
    only: tuple[str, ...] = ()


def fuzz(
    server: RunningServer, cast: Cast, caller: Caller, run: Run, described: dict[str, Any] | None = None
) -> Outcome:
    """Send random requests, as one of the cast or as nobody."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "openapi.json").write_text(json.dumps(described or description()), encoding="utf-8")
        words = {name: json.dumps(values) for name, values in cast.words.items()}
        (place / "schemathesis.toml").write_text(SETTINGS.format(seed=run.seed, **words), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(place / "schemathesis.toml"),
        ]
        command += ["run", str(place / "openapi.json"), "--url", server.url, "--no-color"]
        command += ["--max-time", str(run.seconds), "--max-failures", str(run.failures_max)]
        command += ["--continue-on-failure", "--output-truncate", "false"]
        # A busy machine is no finding: neither one that answers late nor one that makes requests slowly.
        command += ["--request-timeout", "60", "--suppress-health-check", "too_slow"]
        for name, value in caller.headers().items():
            command += ["-H", f"{name}: {value}"]
        for name in run.only:
            command += ["--include-operation-id", name]
        ended = subprocess.run(
            command,
            cwd=place,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "NO_PROXY": "*"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=run.seconds * 2 + 120,
            check=False,
        )
    return Outcome(ended.returncode == 0, f"As {caller.name}, seed {run.seed}:\n{ended.stdout}")


def fuzz_everyone(server: RunningServer, seconds: int, seed: int = SEED) -> list[Outcome]:
    """Share the time: most of it for whoever may do most, some for a guest, a reader and nobody."""
    short = Run(max(5, seconds // 8), seed)
    long = replace(short, seconds=max(10, seconds - 3 * short.seconds))
    cast = furnish(server)
    outcomes = [fuzz(server, cast, cast.admin, long)]
    cast = furnish(server)
    arrow = replace(short, only=("topic.publish", "topic.consume", "topic.read", "sql.query"))
    outcomes.append(fuzz(server, cast, cast.guest, arrow))
    outcomes.append(fuzz(server, cast, cast.reader, short))
    outcomes.append(fuzz(server, cast, Caller("nobody"), short))
    return outcomes


def main() -> int:
    """Run for long, on a home of its own; give 1 where something was found."""
    parser = argparse.ArgumentParser(description="Random requests over the whole description.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "home", environ=ENVIRON) as server,
    ):
        outcomes = fuzz_everyone(server, int(chosen.minutes * 60), chosen.seed)
    for outcome in outcomes:
        print(outcome.text)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
