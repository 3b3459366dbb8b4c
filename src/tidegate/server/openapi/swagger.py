"""The page of the API: a place to read the description and to try it, without the internet.

Swagger UI comes from the package `offapi`, which carries its published files unchanged; here they are read,
never imported. The page runs scripts of this server alone, so that nothing in a description or in an answer
can run one. A browser that is signed in tries calls with its session.
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
from tidegate.server.http.request import Call
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
# No validator of another site, and no code that is made from text.
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
    # Asked for again each time and answered with 304 while it is the same: an upgrade shows at once.
    "Cache-Control": "private, no-cache",
}
# Our names of the bundle's files.
_BUNDLED = {
    "swagger-ui-bundle.js": ("swagger_bundle.js", _SCRIPT),
    "swagger-ui.css": ("swagger_style.css", _STYLE),
}


@dataclass(frozen=True, slots=True)
class File:
    """Bytes to send, their type and their tag."""

    content: bytes
    content_type: str
    tag: str


async def show_docs(call: Call) -> Response:
    """A page to read this description and to try the calls."""
    return _answer(call, _made(PAGE, _HTML))


async def show_description(call: Call) -> Response:
    """This description, in OpenAPI 3.1, with the limits of this server."""
    settings = call.running.settings
    return _answer(call, await call.running.threads.read(_description, settings.server, settings.topics))


async def show_file(call: Call) -> Response:
    """A script or a style of the page."""
    return _answer(call, await call.running.threads.read(_file, call.params["file"]))


def bundle_folder() -> Path:
    """Return where the files of Swagger UI are; the package is found without running any of its code."""
    spec = importlib.util.find_spec("offapi")
    if spec is None or not spec.submodule_search_locations:
        raise InvariantBroken(reason="the package offapi is not installed")
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=8)
def _file(name: str) -> File:
    if name == "start.js":
        return _made(START, _SCRIPT)
    if name == "style.css":
        return _made(STYLE, _STYLE)
    if name not in _BUNDLED:
        raise EndpointNotFound(path=f"/docs/{shorten(name)}")
    file, content_type = _BUNDLED[name]
    return _tagged((bundle_folder() / file).read_bytes(), content_type)


@lru_cache(maxsize=2)
def _description(server: ServerSettings, topics: TopicSettings) -> File:
    # Only here: the description names the routes, and the routes name this page.
    from tidegate.server.openapi.document import describe_api

    described = describe_api(Settings(server=server, topics=topics))
    return _tagged(msgspec.json.encode(described), JSON)


@lru_cache(maxsize=8)
def _made(text: str, content_type: str) -> File:
    return _tagged(text.encode(), content_type)


def _tagged(content: bytes, content_type: str) -> File:
    return File(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _answer(call: Call, file: File) -> Response:
    headers = {**_HEADERS, "ETag": file.tag}
    known = {tag.strip().removeprefix("W/") for tag in call.header("if-none-match").split(",")}
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.content_type})
