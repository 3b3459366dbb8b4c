"""The description of the API: takes the routes, gives OpenAPI 3.1, keeps nothing.

Everything comes from what the server runs on: paths, bodies and answers from the routes, texts from the
docstrings of the endpoints, errors from `faults`, limits from `limits` and the settings. The same routes and
settings give the same bytes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import __version__
from tidegate.errors import CatalogUnavailable, NotReady, TidegateError
from tidegate.model.access import Operation, Role, allowed_operations
from tidegate.server.http.responses import ARROW_STREAM, JSON
from tidegate.server.openapi import schemas
from tidegate.server.openapi.errors import faults_of
from tidegate.server.openapi.limits import (
    BODY_EXAMPLES,
    FORMS,
    IDEMPOTENCY_KEY,
    PATH_PARAMETERS,
    TENANT_NAME,
    TYPE_OF_KEYWORD,
    Schema,
    field_limits,
    query_parameters,
)
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.server.api.routes import Route

FORM = "application/x-www-form-urlencoded"
_REF = "#/components/schemas/{name}"
_ARROW: Schema = {"type": "string", "format": "binary", "description": "An Arrow IPC stream."}
_OPEN_TAG = "status"
_TAGS = {
    "topic": "Durable logs of messages, in partitions.",
    "sql": "SELECT over the tables of the lake.",
    "status": "How things are.",
    "pipeline": "What the worker runs.",
    "me": "Who calls.",
    "user": "People and programs of a tenant.",
    "token": "What lets a user in.",
    "link": "One-time links that let a browser in.",
    "tenant": "Tenants of the instance.",
    "audit": "Who did what.",
    "job": "Work that takes long.",
    "backup": "Consistent copies of the home.",
    "metrics": "Figures for Prometheus.",
    "docs": "This description.",
    "page": "Pages for people.",
    "worker": "What the worker says.",
}
_ABOUT = (
    "Bodies are UTF-8 JSON in camelCase; an unknown field is refused. Where an endpoint takes or gives "
    "Arrow, `Content-Type` and `Accept` choose it. Every error has one shape, with a stable `code`. Lists "
    "come in pages: send `next` of one as `after` of the next. A W3C `traceparent` is followed."
)


def describe_api(
    settings: Settings | None = None, routes: Sequence[Route] | None = None, *, closed_answers: bool = False
) -> dict[str, Any]:
    """Describe every endpoint in OpenAPI 3.1, with the limits of these settings.

    Answers may gain fields in later versions; `closed_answers` says that they have none but the described.
    """
    if routes is None:
        from tidegate.server.api.routes import ROUTES

        routes = ROUTES
    settings = settings or Settings()
    writer = _Writer(settings, routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = writer.operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidegate", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/", "description": "This server."}],
        "tags": [{"name": name, "description": _TAGS.get(name, "")} for name in writer.tags()],
        "paths": paths,
        "components": {
            "schemas": writer.schemas(closed_answers),
            "securitySchemes": _security_schemes(),
            "headers": _headers(),
            "parameters": _parameters(),
        },
    }


class _Writer:
    """Writes operations; knows the structs of all routes."""

    def __init__(self, settings: Settings, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._limits = field_limits(settings)
        self._query = query_parameters(settings)
        self._bodies = _unique(route.body for route in routes if route.body is not None)
        self._answers = _unique(
            route.answer for route in routes if route.answer and not isinstance(route.answer, schemas.Media)
        )
        refs, self._body_schemas = msgspec.json.schema_components(self._bodies, ref_template=_REF)
        self._body_refs = dict(zip(self._bodies, refs, strict=True))
        refs, self._answer_schemas = msgspec.json.schema_components(
            [schemas.Error, *self._answers], ref_template=_REF
        )
        self._answer_refs = dict(zip(self._answers, refs[1:], strict=True))

    def tags(self) -> list[str]:
        """List the tags in the order in which people meet them."""
        used = {_tag(route) for route in self._routes}
        return [name for name in _TAGS if name in used] + sorted(used - set(_TAGS))

    def schemas(self, closed_answers: bool) -> dict[str, Schema]:
        """Return every named schema, by name."""
        made = {name: _tidy(schema) for name, schema in self._body_schemas.items()}
        for name, limits in self._limits.items():
            for field, limit in limits.items():
                if name in made:
                    made[name]["properties"][field] = _narrowed(made[name]["properties"][field], limit)
        for name, schema in self._answer_schemas.items():
            made[name] = _tidy(schema) | ({"additionalProperties": False} if closed_answers else {})
        return dict(sorted(made.items()))

    def operation(self, route: Route) -> dict[str, Any]:
        """Describe one endpoint."""
        summary, text = _texts(route)
        told: dict[str, Any] = {
            "operationId": self._operation_id(route),
            "tags": [_tag(route)],
            "summary": summary,
            "description": text,
            "parameters": self._parameters_of(route),
            "security": _security(route),
        }
        form = FORMS.get(f"{route.method} {route.path}")
        if route.body is not None:
            told["requestBody"] = self._request_body(route)
        elif form is not None:
            told["requestBody"] = {"required": True, "content": {FORM: {"schema": form}}}
        told["responses"] = {str(route.status): self._answer(route), **_refusals(route)}
        if isinstance(route.answer, schemas.Media) and route.answer.kept:
            told["responses"]["304"] = {"description": "The caller has it already: `If-None-Match` says so."}
        return told

    def _operation_id(self, route: Route) -> str:
        name = str(getattr(route.endpoint, "__name__", "call"))
        if route.operation is None:
            return name
        first = next(other for other in self._routes if other.operation == route.operation)
        return str(route.operation) if route is first else f"{_noun(route)}.{name}"

    def _parameters_of(self, route: Route) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        for name in re.findall(r"\{(\w+)\}", route.path):
            schema = PATH_PARAMETERS.get(name, _TEXT)
            told.append({"name": name, "in": "path", "required": True, "schema": schema})
            if "examples" in schema:
                told[-1]["example"] = schema["examples"][0]
        for name in route.query:
            schema = dict(self._query.get(name, _TEXT))
            text = schema.pop("description", "")
            told.append({"name": name, "in": "query", "description": text, "schema": schema})
        if route.keyed:
            told.append({"$ref": "#/components/parameters/IdempotencyKey"})
        if route.operation is not None:
            told.append({"$ref": "#/components/parameters/Tenant"})
        told.append({"$ref": "#/components/parameters/RequestId"})
        return told

    def _request_body(self, route: Route) -> dict[str, Any]:
        content: dict[str, Any] = {JSON: {"schema": self._body_refs[route.body]}}
        example = BODY_EXAMPLES.get(getattr(route.body, "__name__", ""))
        if example is not None:
            content[JSON]["example"] = example
        if route.arrow_in:
            content[ARROW_STREAM] = {"schema": _ARROW}
        return {"required": True, "content": content}

    def _answer(self, route: Route) -> dict[str, Any]:
        headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
        answer = route.answer
        content: dict[str, Any] = {}
        if isinstance(answer, schemas.Media):
            content = {kind: {"schema": {"type": answer.json_type}} for kind in answer.content_types}
            if not content:
                headers["Location"] = {"schema": {"type": "string"}, "required": True}
            text = answer.says
        else:
            text = _first_line(answer) if answer else "An Arrow stream." if route.arrow_out else "Done."
            if answer:
                content[JSON] = {"schema": self._answer_refs[answer]}
        if route.arrow_out:
            content[ARROW_STREAM] = {"schema": _ARROW}
        return {"description": text, "headers": headers} | ({"content": content} if content else {})


_TEXT: Schema = {"type": "string"}


def _unique(kinds: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(kinds))


def _tag(route: Route) -> str:
    if route.answer in (schemas.PAGE, schemas.REDIRECT):
        return "page"
    return _noun(route)


def _noun(route: Route) -> str:
    return str(route.operation).partition(".")[0] if route.operation is not None else _OPEN_TAG


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _texts(route: Route) -> tuple[str, str]:
    """Return the summary and the description of an endpoint: its docstring, and who may call it."""
    first, _, rest = (inspect.getdoc(route.endpoint) or "").partition("\n")
    who = "Open to everyone." if route.operation is None else f"For {_callers(route.operation)}."
    return first.rstrip("."), "\n\n".join(part for part in (first, rest.strip(), who) if part)


def _callers(operation: Operation) -> str:
    """Return who may call an operation."""
    roles = [role for role in Role if operation in allowed_operations(frozenset({role}), instance=False)]
    if not roles:
        return "administrators of the instance"
    return "every role" if len(roles) == len(Role) else ", ".join(roles)


def _security(route: Route) -> list[dict[str, list[str]]]:
    if route.operation is None:
        return []
    known: list[dict[str, list[str]]] = [{"bearer": []}, {"session": []}]
    # From the machine itself, metrics need no token.
    return [*known, {}] if route.path == "/metrics" else known


def _refusals(route: Route) -> dict[str, Any]:
    by_status = groupby(faults_of(route), key=lambda kind: kind.status)
    return {str(status): _refusal(list(kinds)) for status, kinds in by_status}


def _refusal(kinds: list[type[TidegateError]]) -> dict[str, Any]:
    status = kinds[0].status
    codes = [kind.code for kind in kinds]
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    content: dict[str, Any] = {JSON: {"schema": {"allOf": [{"$ref": _REF.format(name="Error")}, narrowed]}}}
    if status == 401:
        content["text/html"] = {"schema": _TEXT}  # where a browser asks
    headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status == 429 or any(issubclass(kind, (NotReady, CatalogUnavailable)) for kind in kinds):
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
    return {"description": ", ".join(f"`{code}`" for code in codes), "headers": headers, "content": content}


def _tidy(schema: Schema) -> Schema:
    """Return a schema of a struct without the defaults of optional fields that say nothing."""
    made = dict(schema)
    made.pop("title", None)
    made["properties"] = {
        name: {key: value for key, value in field.items() if key != "default" or value is not None}
        for name, field in schema.get("properties", {}).items()
    }
    return made


def _narrowed(schema: Schema, limit: Schema) -> Schema:
    """Return a schema with limits, each in the branch of a union whose type it is about."""
    if "anyOf" not in schema:
        return {**schema, **{key: value for key, value in limit.items() if key != "type"}}
    branches = []
    for branch in schema["anyOf"]:
        fitting = {
            key: value
            for key, value in limit.items()
            if key in TYPE_OF_KEYWORD and branch.get("type") in TYPE_OF_KEYWORD[key]
        }
        branches.append({**branch, **fitting})
    loose = {key: value for key, value in limit.items() if key in ("description", "examples")}
    return {**schema, "anyOf": branches, **loose}


def _security_schemes() -> dict[str, Any]:
    return {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "`Authorization: Bearer <token>`; the admin's is in `admin.token` in the home.",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": "tidegate_session",
            "description": "What a one-time link leaves in a browser; this page uses it by itself.",
        },
    }


def _headers() -> dict[str, Any]:
    return {
        "RequestId": {
            "description": "The id of this request; the server's log has it, too.",
            "required": True,
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
        },
        "RetryAfter": {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}},
    }


def _parameters() -> dict[str, Any]:
    return {
        "RequestId": {
            "name": "X-Request-Id",
            "in": "header",
            "description": "Taken when it has 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'; else one is made.",
            "schema": {"type": "string"},
        },
        "Tenant": {
            "name": "X-Tenant",
            "in": "header",
            "description": "The tenant in which an administrator of the instance acts.",
            "schema": TENANT_NAME,
        },
        "IdempotencyKey": {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "A request that comes again with its key is answered as before, not done again.",
            "schema": IDEMPOTENCY_KEY,
        },
    }
