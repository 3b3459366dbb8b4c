"""The description of the API says what the server does: all of it, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pyarrow as pa
import pytest
import schemathesis

from tests.paths import ROOT
from tests.server import fuzz
from tidegate.errors import every_error
from tidegate.model.access import Operation
from tidegate.sdk.arrow import stream_bytes
from tidegate.server.http.responses import ARROW_STREAM
from tidegate.server.openapi import media
from tidegate.server.openapi.document import describe_api
from tidegate.server.routes import ROUTES
from tidegate.settings import Settings, load_settings
from tidegate.testing.server import RunningServer, running_server

# The whole of the fuzzing in one run of the tests; `python -m tests.server.fuzz` goes on for longer.
FUZZ_SECONDS = 35
# A lie is found within two seconds; the rest is for a machine that is busy.
LIE_SECONDS_MAX = 120


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with small limits that nobody else needs."""
    with running_server(tmp_path_factory.mktemp("fuzz") / "home", environ=fuzz.ENVIRON) as running:
        yield running


def operations(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operations by method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def inner(value: Any) -> Iterator[dict[str, Any]]:
    """Walk every mapping inside a value."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from inner(part)
    elif isinstance(value, list):
        for part in value:
            yield from inner(part)


def test_the_description_is_valid_openapi() -> None:
    described = describe_api()
    assert described["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(described).validate()


def test_every_route_is_described_with_a_name_of_its_own() -> None:
    told = operations(describe_api())
    assert sorted(told) == sorted(f"{route.method} {route.path}" for route in ROUTES)
    names = [operation["operationId"] for operation in told.values()]
    assert len(set(names)) == len(names)
    assert {
        str(operation) for operation in Operation if any(r.operation == operation for r in ROUTES)
    } <= set(names)
    assert [name for name, operation in told.items() if not operation["summary"]] == []


def test_every_route_says_what_it_answers() -> None:
    nameless = [
        f"{route.method} {route.path}" for route in ROUTES if not route.answer and not route.arrow_out
    ]
    assert nameless == []


def test_every_reference_leads_somewhere() -> None:
    described = describe_api()
    for part in inner(described):
        if "$ref" in part:
            place: Any = described
            for step in part["$ref"].removeprefix("#/").split("/"):
                assert step in place, part["$ref"]
                place = place[step]


def test_every_parameter_in_a_path_is_described() -> None:
    for name, operation in operations(describe_api()).items():
        told = [parameter["name"] for parameter in operation["parameters"] if parameter.get("in") == "path"]
        assert told == re.findall(r"\{(\w+)\}", name), name


def test_what_needs_a_token_says_so_and_what_is_open_does_not() -> None:
    told = operations(describe_api())
    for route in ROUTES:
        operation = told[f"{route.method} {route.path}"]
        guarded = route.operation is not None
        assert bool(operation["security"]) == guarded
        assert guarded == ("403" in operation["responses"]) or route.path == "/enter"
        if guarded:
            assert {"401", "403", "500", "503"} <= set(operation["responses"])


def test_every_error_that_is_told_exists_with_that_status() -> None:
    status_of = {kind.code: str(kind.status) for kind in every_error()}
    for name, operation in operations(describe_api()).items():
        for status, answer in operation["responses"].items():
            for code in re.findall(r"`([A-Z_]+)`", answer["description"]):
                assert status_of[code] == status, name


def test_the_description_is_the_same_in_every_process() -> None:
    script = (
        "import json; from tidegate.server.openapi.document import describe_api as d; print(json.dumps(d()))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert [json.loads(text) for text in printed] == [describe_api()]


def test_limits_are_those_of_the_settings() -> None:
    settings = load_settings(
        None, {"TIDEGATE_SERVER_MESSAGES_MAX": "7", "TIDEGATE_TOPICS_PARTITIONS_MAX": "3"}
    )
    schemas = describe_api(settings)["components"]["schemas"]
    assert schemas["PublishBody"]["properties"]["messages"]["maxItems"] == 7
    assert schemas["ConsumeBody"]["properties"]["limit"]["maximum"] == 7
    assert schemas["NewTopic"]["properties"]["partitions"]["maximum"] == 3


def test_every_example_of_a_body_is_valid() -> None:
    described = describe_api(Settings())
    seen = 0
    for name, operation in operations(described).items():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            if "example" in content:
                whole = {**content["schema"], "components": described["components"]}
                assert jsonschema_rs.is_valid(whole, content["example"]), name
                seen += 1
    assert seen > 5


def test_the_server_gives_its_own_description(fuzzed: RunningServer) -> None:
    headers = {"Authorization": f"Bearer {fuzzed.token}"}
    answer = httpx.get(f"{fuzzed.url}/openapi.json", headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200
    assert answer.json() == describe_api(load_settings(None, fuzz.ENVIRON))


WORKER = {
    "pid": 7,
    "state": "running",
    "pipelines": [
        {"name": "meters", "state": "running", "topic": "shape.t", "offsets": {"shape.t": {"0": 1}}},
        {"name": "broken", "state": "failed", "error": "no such column"},
        {"name": "keyed", "state": "running", "operators": [{"name": "sessions", "batch": 4, "entries": 7}]},
    ],
}
TOPIC = "/api/v1/topics/{topic}"
USER = "/api/v1/users/{user}"
MESSAGES = {"messages": [{"key": "k", "payload": {"a": [None]}}, {"payload": None}, {"payload": "x"}]}
# One call at least for each answer that has a shape. Names in braces are those below, and ids that came back.
NAMES = {"topic": "shape.t", "name": "meters", "user": "shape-user", "tenant": "shape", "group": "shape"}
PART = stream_bytes(pa.table({"payload": ["1"]}))
CALLS: list[tuple[str, str, Any]] = [
    ("GET /health", "", None),
    ("GET /ready", "", None),
    ("POST /api/v1/topics", "", {"name": "shape.t", "partitions": 2}),
    (f"POST {TOPIC}/publish", "", MESSAGES),
    (f"POST {TOPIC}/consume", "", {}),
    (f"POST {TOPIC}/plan", "", {"start": "earliest"}),
    (f"POST {TOPIC}/consume", "", {"group": "shape"}),
    (f"POST {TOPIC}/ack", "", {"group": "shape", "acks": [{"partition": 0, "uptoOffset": 0}]}),
    (f"POST {TOPIC}/nack", "", {"group": "shape", "leases": []}),
    (f"POST {TOPIC}/extend", "", {"group": "shape", "leases": []}),
    (f"POST {TOPIC}/reset", "", {"group": "shape", "to": "earliest"}),
    (f"GET {TOPIC}/groups", "", None),
    (f"DELETE {TOPIC}/groups/{{group}}", "", None),
    (f"POST {TOPIC}/parts", "?writer=w&batch=0", PART),
    (f"POST {TOPIC}/commit", "", {"writer": "w", "batch": 0, "parts": []}),
    (f"POST {TOPIC}/abort", "", {"writer": "w", "batch": 1, "parts": []}),
    (f"PATCH {TOPIC}", "", {"retentionSeconds": 60}),
    (f"POST {TOPIC}/clear", "", None),
    ("GET /api/v1/topics", "?limit=1", None),
    (f"GET {TOPIC}", "", None),
    ("POST /api/v1/worker/report", "", WORKER),
    ("GET /api/v1/status", "", None),
    ("GET /api/v1/pipelines", "", None),
    ("GET /api/v1/pipelines/{name}", "", None),
    ("POST /api/v1/sql", "", {"sql": "SELECT 1 AS a, NULL AS b"}),
    ("POST /api/v1/users", "", {"name": "shape-user"}),
    ("GET /api/v1/users", "?limit=1", None),
    (f"GET {USER}", "", None),
    (f"PATCH {USER}", "", {"enabled": True}),
    (f"POST {USER}/tokens", "", {"lifetimeSeconds": None}),
    (f"GET {USER}/tokens", "", None),
    (f"DELETE {USER}/tokens/{{token}}", "", None),
    (f"GET {USER}/quota", "", None),
    (f"PATCH {USER}/quota", "", {"requestsPerSecond": 0, "publishedBytesPerSecond": None}),
    (f"DELETE {USER}", "", None),
    ("POST /api/v1/links", "", None),
    ("POST /api/v1/tenants", "", {"name": "shape"}),
    ("GET /api/v1/tenants", "?limit=1", None),
    ("GET /api/v1/quota", "", None),
    ("GET /api/v1/tenants/{tenant}/quota", "", None),
    ("PATCH /api/v1/tenants/{tenant}/quota", "", {"topics": 5, "diskBytes": None}),
    ("POST /api/v1/tenants/{tenant}/disable", "", None),
    ("POST /api/v1/tenants/{tenant}/enable", "", None),
    ("POST /api/v1/backups", "", {}),
    ("POST /api/v1/backups/{backup}/finish", "", {"file": "/nowhere/b.tar", "bytes": 1}),
    ("POST /api/v1/backups", "", {}),
    ("DELETE /api/v1/backups/{backup}", "", None),
    ("GET /api/v1/jobs", "", None),
    ("GET /api/v1/jobs/{job}", "", None),
    ("GET /api/v1/audit", "", None),
    ("GET /api/v1/me", "", None),
    (f"DELETE {TOPIC}", "", None),
]


def test_real_answers_have_the_described_fields_and_no_others(fuzzed: RunningServer) -> None:
    described = describe_api(load_settings(None, fuzz.ENVIRON), closed_answers=True)
    told = operations(described)
    lake = fuzzed.home / "lake" / "damaged"
    (lake / "_delta_log").mkdir(parents=True)
    (lake / "_delta_log" / f"{0:020}.json").write_text("no table")
    names = dict(NAMES)
    with httpx.Client(base_url=fuzzed.url, trust_env=False, timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {fuzzed.token}"
        for name, query, body in CALLS:
            method, path = name.format_map(names).split(" ")
            sent: dict[str, Any] = {"json": body}
            if isinstance(body, bytes):
                sent = {"content": body, "headers": {"Content-Type": ARROW_STREAM}}
            answer = http.request(method, path + query, **sent)
            assert answer.is_success, (name, answer.text)
            schema = told[name]["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
            whole = {**schema, "components": described["components"]}
            jsonschema_rs.validator_for(whole).validate(answer.json())
            if name.endswith(("/tokens", "/backups")) and method == "POST":
                names |= {name.split("/")[-1].removesuffix("s"): answer.json()["id"]}
                names |= {"job": answer.json().get("job", "")}


def test_what_is_left_out_fits_limits_that_are_small(fuzzed: RunningServer) -> None:
    cast = fuzz.furnish(fuzzed)
    with httpx.Client(
        base_url=fuzzed.url, headers=cast.reader.headers(), trust_env=False, timeout=60
    ) as http:
        taken = http.post(f"/api/v1/topics/{fuzz.TOPIC}/consume", json={})
        assert (taken.status_code, len(taken.json()["messages"])) == (200, 10)
        assert http.get("/api/v1/topics").status_code == 200


def test_every_shape_is_held_against_a_real_answer() -> None:
    tried = {name for name, _, _ in CALLS}
    shaped = {
        f"{route.method} {route.path}"
        for route in ROUTES
        if route.answer and not isinstance(route.answer, media.Media)
    }
    assert shaped - tried == set()


def test_random_requests_are_answered_as_described(fuzzed: RunningServer) -> None:
    outcomes = fuzz.fuzz_everyone(fuzzed, FUZZ_SECONDS)
    for outcome in outcomes:
        print(outcome.text)
    assert [outcome.text for outcome in outcomes if not outcome.passed] == []


def lie_about_fields(described: dict[str, Any]) -> None:
    topic = described["components"]["schemas"]["TopicResponse"]
    del topic["properties"]["bytes"]
    topic["required"].remove("bytes")


def lie_about_statuses(described: dict[str, Any]) -> None:
    del described["paths"]["/api/v1/topics"]["get"]["responses"]["422"]


def lie_about_limits(described: dict[str, Any]) -> None:
    for branch in described["components"]["schemas"]["PlanBody"]["properties"]["messagesMax"]["anyOf"]:
        if branch["type"] == "integer":
            branch["maximum"] = 2


@pytest.mark.parametrize("lie", [lie_about_fields, lie_about_statuses, lie_about_limits])
def test_random_requests_find_a_lie(fuzzed: RunningServer, lie: Callable[[dict[str, Any]], None]) -> None:
    described = fuzz.description()
    lie(described)
    cast = fuzz.furnish(fuzzed)
    run = fuzz.Run(LIE_SECONDS_MAX, failures_max=1, only=("topic.list", "topic.create", "topic.plan"))
    outcome = fuzz.fuzz(fuzzed, cast, cast.admin, run, described)
    assert not outcome.passed, outcome.text


def test_the_long_run_starts(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests.server.fuzz", "--help"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    assert "--minutes" in told
