"""The API page: Swagger UI over the OpenAPI document, without the internet.

Swagger UI's published files come unchanged in the package `offapi`; here they are read, never imported. The
page runs scripts of this server alone, so nothing in the document or in an answer can run one. A browser that
is signed in sends requests with its session.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
from starlette.responses import Response

from tidegate.errors import EndpointNotFound, InvariantBroken
from tidegate.model.names import shorten
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import JSON
from tidegate.settings import ServerSettings, Settings, TopicSettings

_HTML = "text/html; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidegate API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="stylesheet" href="/docs/style.css">
</head>
<body>
<header><a href="/">Tidegate</a> <a href="/openapi.json">openapi.json</a></header>
<noscript><p>This page needs JavaScript; <a href="/openapi.json">openapi.json</a> does not.</p></noscript>
<main id="api"></main>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
# No validator on another site, and no code that is built from text.
START = """window.ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  displayOperationId: true,
  displayRequestDuration: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
  validatorUrl: null,
  syntaxHighlight: { activated: true },
});
"""
STYLE = """body { margin: 0; background: #fafafa; }
header { padding: .75rem 1.25rem; background: #12344d; font: 600 1rem/1.5 system-ui, sans-serif; }
header a { color: #fff; margin-right: 1.25rem; }
header a:focus-visible { outline: 3px solid #ffb454; outline-offset: 2px; }
noscript p { padding: 1.25rem; font: 1rem/1.5 system-ui, sans-serif; }
.swagger-ui .info { margin: 1.5rem 0; }
.swagger-ui .scheme-container { padding: 1rem 0; }
@media (max-width: 40rem) { .swagger-ui .opblock-summary-operation-id { display: none; } }
"""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    # Revalidated each time and answered with 304 while unchanged: an upgrade shows at once.
    "Cache-Control": "private, no-cache",
}
# Names of the bundle's files here and in the package.
_BUNDLED = {
    "swagger-ui-bundle.js": ("swagger_bundle.js", _SCRIPT),
    "swagger-ui.css": ("swagger_style.css", _STYLE),
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """The bytes of a file, their media type and their ETag."""

    content: bytes
    content_type: str
    tag: str


async def show_docs(request: HttpRequest) -> Response:
    """A page to read this description and to try the calls."""
    return _answer(request, _text_file(PAGE, _HTML))


async def show_description(request: HttpRequest) -> Response:
    """This description, in OpenAPI 3.1, with the limits of this server."""
    settings = request.runtime.settings
    return _answer(
        request, await request.runtime.threads.read(_description, settings.server, settings.topics)
    )


async def show_file(request: HttpRequest) -> Response:
    """A script or a style of the page."""
    return _answer(request, await request.runtime.threads.read(_file, request.params["file"]))


def bundle_folder() -> Path:
    """Return the folder of Swagger UI's files; the package is found without running any of its code."""
    spec = importlib.util.find_spec("offapi")
    if spec is None or not spec.submodule_search_locations:
        raise InvariantBroken(reason="the package offapi is not installed")
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=8)
def _file(name: str) -> StaticFile:
    if name == "start.js":
        return _text_file(START, _SCRIPT)
    if name == "style.css":
        return _text_file(STYLE, _STYLE)
    if name not in _BUNDLED:
        raise EndpointNotFound(path=f"/docs/{shorten(name)}")
    file, content_type = _BUNDLED[name]
    return _with_etag((bundle_folder() / file).read_bytes(), content_type)


@lru_cache(maxsize=2)
def _description(server: ServerSettings, topics: TopicSettings) -> StaticFile:
    # Imported here: the document needs the routes, and the routes need this module.
    from tidegate.server.openapi.document import describe_api

    described = describe_api(Settings(server=server, topics=topics))
    return _with_etag(msgspec.json.encode(described), JSON)


@lru_cache(maxsize=8)
def _text_file(text: str, content_type: str) -> StaticFile:
    return _with_etag(text.encode(), content_type)


def _with_etag(content: bytes, content_type: str) -> StaticFile:
    return StaticFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _answer(request: HttpRequest, file: StaticFile) -> Response:
    headers = {**_HEADERS, "ETag": file.tag}
    known = {tag.strip().removeprefix("W/") for tag in request.header("if-none-match").split(",")}
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.content_type})
