"""The OpenAPI 3.1 document of the server.

All of it follows from the code: paths, bodies and answers from the routes, texts from the docstrings of the
endpoints, errors from `errors`, limits from `limits` and the settings. The same routes and settings give the
same bytes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from tidegate import __version__
from tidegate.errors import CatalogUnavailable, NotReady, TidegateError
from tidegate.model.access import Operation, Role, allowed_operations
from tidegate.model.wire.struct import ErrorResponse
from tidegate.server.http.request import Endpoint
from tidegate.server.http.responses import ARROW_STREAM, JSON
from tidegate.server.openapi import media
from tidegate.server.openapi.errors import errors_of
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
from tidegate.server.routes import ROUTES
from tidegate.settings import Settings

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
    settings: Settings | None = None,
    routes: Sequence[Endpoint] = ROUTES,
    *,
    closed_answers: bool = False,
) -> dict[str, Any]:
    """Return the OpenAPI document of every endpoint, with the limits of these settings.

    Answers may gain fields in later versions; with `closed_answers` they have the described ones alone.
    """
    settings = settings or Settings()
    writer = _Writer(settings, routes)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in routes:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = writer.operation(endpoint)
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
    """Writes the operations and the schemas of all routes."""

    def __init__(self, settings: Settings, routes: Sequence[Endpoint]) -> None:
        self._routes = routes
        self._limits = field_limits(settings)
        self._query = query_parameters(settings)
        self._bodies = _unique(endpoint.body for endpoint in routes if endpoint.body is not None)
        self._answers = _unique(
            endpoint.answer
            for endpoint in routes
            if endpoint.answer and not isinstance(endpoint.answer, media.Media)
        )
        refs, self._body_schemas = msgspec.json.schema_components(self._bodies, ref_template=_REF)
        self._body_refs = dict(zip(self._bodies, refs, strict=True))
        refs, answer_schemas = msgspec.json.schema_components(
            [ErrorResponse, *self._answers], ref_template=_REF
        )
        # A struct that is a part of a body and of an answer has two schemas: in an answer all fields are
        # there.
        self._renamed = {name: f"{name}Answer" for name in answer_schemas if name in self._body_schemas}
        self._answer_refs = dict(zip(self._answers, refs[1:], strict=True))
        self._answer_schemas = {
            self._renamed.get(name, name): _complete(_with_refs(schema, self._renamed))
            for name, schema in answer_schemas.items()
        }

    def tags(self) -> list[str]:
        """Return the tags in their order on the page."""
        used = {_tag(endpoint) for endpoint in self._routes}
        return [name for name in _TAGS if name in used] + sorted(used - set(_TAGS))

    def schemas(self, closed_answers: bool) -> dict[str, Schema]:
        """Return every named schema, by name."""
        made = {name: _tidy(schema) for name, schema in self._body_schemas.items()}
        for name, limits in self._limits.items():
            for field, limit in limits.items():
                if name in made:
                    made[name]["properties"][field] = _with_limits(made[name]["properties"][field], limit)
        for name, schema in self._answer_schemas.items():
            made[name] = _tidy(schema) | ({"additionalProperties": False} if closed_answers else {})
        return dict(sorted(made.items()))

    def operation(self, endpoint: Endpoint) -> dict[str, Any]:
        """Return the description of one endpoint."""
        summary, text = _texts(endpoint)
        described: dict[str, Any] = {
            "operationId": self._operation_id(endpoint),
            "tags": [_tag(endpoint)],
            "summary": summary,
            "description": text,
            "parameters": self._parameters_of(endpoint),
            "security": _security(endpoint),
        }
        form = FORMS.get(f"{endpoint.method} {endpoint.path}")
        if endpoint.body is not None:
            described["requestBody"] = self._request_body(endpoint)
        elif form is not None:
            described["requestBody"] = {"required": True, "content": {FORM: {"schema": form}}}
        described["responses"] = {str(endpoint.status): self._answer(endpoint), **_refusals(endpoint)}
        if isinstance(endpoint.answer, media.Media) and endpoint.answer.is_cached:
            described["responses"]["304"] = {
                "description": "The caller has it already: `If-None-Match` says so."
            }
        return described

    def _operation_id(self, endpoint: Endpoint) -> str:
        name = str(getattr(endpoint.function, "__name__", "call"))
        if endpoint.operation is None:
            return name
        first = next(other for other in self._routes if other.operation == endpoint.operation)
        return str(endpoint.operation) if endpoint is first else f"{_noun(endpoint)}.{name}"

    def _parameters_of(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        parameters: list[dict[str, Any]] = []
        for name in re.findall(r"\{(\w+)\}", endpoint.path):
            schema = PATH_PARAMETERS.get(name, _TEXT)
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
            if "examples" in schema:
                parameters[-1]["example"] = schema["examples"][0]
        for name in endpoint.query:
            schema = dict(self._query.get(name, _TEXT))
            text = schema.pop("description", "")
            parameters.append({"name": name, "in": "query", "description": text, "schema": schema})
        if endpoint.keyed:
            parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
        if endpoint.operation is not None:
            parameters.append({"$ref": "#/components/parameters/Tenant"})
        parameters.append({"$ref": "#/components/parameters/RequestId"})
        return parameters

    def _request_body(self, endpoint: Endpoint) -> dict[str, Any]:
        content: dict[str, Any] = {JSON: {"schema": self._body_refs[endpoint.body]}}
        example = BODY_EXAMPLES.get(getattr(endpoint.body, "__name__", ""))
        if example is not None:
            content[JSON]["example"] = example
        if endpoint.arrow_in:
            content[ARROW_STREAM] = {"schema": _ARROW}
        return {"required": True, "content": content}

    def _answer(self, endpoint: Endpoint) -> dict[str, Any]:
        headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
        answer = endpoint.answer
        content: dict[str, Any] = {}
        if isinstance(answer, media.Media):
            content = {kind: {"schema": {"type": answer.json_type}} for kind in answer.content_types}
            if not content:
                headers["Location"] = {"schema": {"type": "string"}, "required": True}
            text = answer.description
        else:
            text = _first_line(answer) if answer else "An Arrow stream." if endpoint.arrow_out else "Done."
            if answer:
                content[JSON] = {"schema": self._answer_refs[answer]}
        if endpoint.arrow_out:
            content[ARROW_STREAM] = {"schema": _ARROW}
        return {"description": text, "headers": headers} | ({"content": content} if content else {})


_TEXT: Schema = {"type": "string"}


def _unique(kinds: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(kinds))


def _tag(endpoint: Endpoint) -> str:
    if endpoint.answer in (media.PAGE, media.REDIRECT):
        return "page"
    return _noun(endpoint)


def _noun(endpoint: Endpoint) -> str:
    return str(endpoint.operation).partition(".")[0] if endpoint.operation is not None else _OPEN_TAG


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _texts(endpoint: Endpoint) -> tuple[str, str]:
    """Return the summary and the description of an endpoint: its docstring, and who may call it."""
    first, _, rest = (inspect.getdoc(endpoint.function) or "").partition("\n")
    who = "Open to everyone." if endpoint.operation is None else f"For {_callers(endpoint.operation)}."
    return first.rstrip("."), "\n\n".join(part for part in (first, rest.strip(), who) if part)


def _callers(operation: Operation) -> str:
    """Return the roles that may call an operation, as text."""
    roles = [role for role in Role if operation in allowed_operations(frozenset({role}), instance=False)]
    if not roles:
        return "administrators of the instance"
    return "every role" if len(roles) == len(Role) else ", ".join(roles)


def _security(endpoint: Endpoint) -> list[dict[str, list[str]]]:
    if endpoint.operation is None:
        return []
    known: list[dict[str, list[str]]] = [{"bearer": []}]
    if not endpoint.bearer_only:
        known.append({"session": []})
    # Metrics need no token from the machine itself.
    return [*known, {}] if endpoint.path == "/metrics" else known


def _refusals(endpoint: Endpoint) -> dict[str, Any]:
    by_status = groupby(errors_of(endpoint), key=lambda kind: kind.status)
    return {str(status): _refusal(list(kinds)) for status, kinds in by_status}


def _refusal(kinds: list[type[TidegateError]]) -> dict[str, Any]:
    status = kinds[0].status
    codes = [kind.code for kind in kinds]
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    content: dict[str, Any] = {
        JSON: {"schema": {"allOf": [{"$ref": _REF.format(name="ErrorResponse")}, narrowed]}}
    }
    if status == 401:
        content["text/html"] = {"schema": _TEXT}  # where a browser asks
    headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status == 429 or any(issubclass(kind, (NotReady, CatalogUnavailable)) for kind in kinds):
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
    return {"description": ", ".join(f"`{code}`" for code in codes), "headers": headers, "content": content}


def _with_refs(schema: Any, renamed: Mapping[str, str]) -> Any:
    """Return a schema whose references to renamed schemas have the new names."""
    if isinstance(schema, list):
        return [_with_refs(part, renamed) for part in schema]
    if not isinstance(schema, dict):
        return schema
    refs = {_REF.format(name=old): _REF.format(name=new) for old, new in renamed.items()}
    return {
        key: refs.get(part, part) if key == "$ref" else _with_refs(part, renamed)
        for key, part in schema.items()
    }


def _complete(schema: Schema) -> Schema:
    """Return the schema of a struct in an answer, where fields with a default are always there."""
    fields = schema.get("properties", {})
    required = set(schema.get("required", ())) | {
        name for name, field in fields.items() if "default" in field
    }
    bare = {name: {k: v for k, v in field.items() if k != "default"} for name, field in fields.items()}
    return {**schema, "properties": bare, "required": [name for name in fields if name in required]}


def _tidy(schema: Schema) -> Schema:
    """Return the schema of a struct without its title and without defaults of null."""
    made = dict(schema)
    made.pop("title", None)
    made["properties"] = {
        name: {key: value for key, value in field.items() if key != "default" or value is not None}
        for name, field in schema.get("properties", {}).items()
    }
    return made


def _with_limits(schema: Schema, limit: Schema) -> Schema:
    """Return a schema with limits, each in the branch of a union whose type it applies to."""
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
            "description": "A request that is sent again with its key is answered as before, not done again.",
            "schema": IDEMPOTENCY_KEY,
        },
    }
