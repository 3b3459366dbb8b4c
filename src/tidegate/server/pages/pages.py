"""Pages for browsers: the start page, the sign-in page, and one-time links.

A link is opened with a GET and consumed by a POST. Chat programs, mail scanners and browsers prefetch links,
and would consume them; none of them presses a button. So the GET shows a page with a button and changes
nothing, and only the form behind the button, a POST to the same path, exchanges the code for a session. Pages
need no script: their policy allows none.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from tidegate.catalog.audit import Actor
from tidegate.errors import (
    BodyTooLarge,
    ContentTypeUnsupported,
    InvariantBroken,
    LinkWrong,
    RequestInvalid,
    RequestMalformed,
    TidegateError,
    TokenWrong,
)
from tidegate.model.times import format_time
from tidegate.model.wire.accounts import LinkResponse
from tidegate.model.wire.status import LakeTableResponse
from tidegate.server.access.origin import check_origin
from tidegate.server.api import status
from tidegate.server.api.users import role_names
from tidegate.server.http.request import SESSION_COOKIE, HttpRequest
from tidegate.server.http.responses import json_answer
from tidegate.server.pages.html import Markup, join, page_answer, text

FORM = "application/x-www-form-urlencoded"
# Many times the size of a code and its name; nobody who is not signed in may send more.
FORM_BYTES_MAX = 4096
ENTER_PATH = "/enter"
# The page shows the first rows; the API has all of them, in pages.
TABLE_ROWS_MAX = 100


def wants_page(request: HttpRequest) -> bool:
    """True if a browser asks for a page; the API is for programs."""
    return "text/html" in request.header("accept") and not request.path.startswith("/api/")


def refusal_page(problem: TidegateError) -> Response:
    """Return the page that shows an authentication error and how to sign in."""
    answer = page_answer(
        "Not signed in",
        join(
            text("<h1>Not signed in</h1><p role=alert>{}</p><p>{}</p>", problem, problem.hint),
            text(
                "<h2>How to get in</h2><p>On the machine that runs the server, or where you have a token, "
                "type</p><pre><code>tidegate open</code></pre><p>It opens a link that lets this browser in "
                "once. Whoever looks after your tenant can give you a token.</p>"
            ),
        ),
        problem.status,
    )
    answer.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(problem, TokenWrong) and not isinstance(problem, LinkWrong):
        # The session in the browser is not valid: sent again and again, it would count as guessing.
        answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def create_link(request: HttpRequest) -> Response:
    """Create a link that signs in one browser, once, as the user of the token, in their own tenant."""
    runtime = request.runtime
    seconds, make = runtime.settings.auth.link_seconds, runtime.catalog.tokens.make_link
    made = await runtime.threads.catalog(make, request.principal, seconds, request.id)
    url = f"{runtime.url.rstrip('/')}{ENTER_PATH}?code={made.code}"
    return json_answer(LinkResponse(url, format_time(made.expires_us)), 201)


async def show_enter(request: HttpRequest) -> Response:
    """The page behind a one-time link: a button, because fetching the link must not consume it."""
    code = request.query.get("code", "")
    if not code:
        raise LinkWrong
    form = text(
        "<h1>Sign in to Tidegate</h1><p>This link lets this browser in, once.</p>"
        '<form method=post action="{}"><input type=hidden name=code value="{}">'
        "<button autofocus>Sign in</button></form>",
        ENTER_PATH,
        code,
    )
    return page_answer("Sign in", form)


async def use_enter(request: HttpRequest) -> Response:
    """Consume a one-time link; the browser gets a session."""
    _check_origin(request)
    code = await _form_code(request)
    runtime = request.runtime
    seconds = runtime.settings.auth.session_hours * 3600
    use_link = runtime.catalog.tokens.use_link
    with runtime.tokens.guesses.guess(request.address):
        made = await runtime.threads.catalog(use_link, code, seconds, request.id)
    if made.expires_us is None:
        raise InvariantBroken(reason="a session has no end")
    answer = RedirectResponse("/", 303, {"Cache-Control": "no-store"})
    answer.set_cookie(
        SESSION_COOKIE,
        made.text,
        # The session may end earlier than usual: with the token that made the link.
        max_age=max(1, (made.expires_us - runtime.clock.now_us()) // 1_000_000),
        path="/",
        secure=runtime.url.startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return answer


async def leave(request: HttpRequest) -> Response:
    """End the browser's session, also for whoever has copied its cookie."""
    if request.header("authorization"):
        reason = "This ends the session of a browser, and no browser's cookie came."
        raise RequestInvalid(reason=reason, hint="A token ends with 'tidegate user revoke'.")
    runtime, principal = request.runtime, request.principal
    actor = Actor(principal.own_tenant, principal.user, request.id)
    revoke = runtime.catalog.tokens.revoke
    await runtime.threads.catalog(revoke, actor, principal.own_tenant, principal.user, principal.token_id)
    await runtime.tokens.refresh()
    answer = page_answer(
        "Signed out",
        text(
            "<h1>Signed out</h1><p>This browser holds no session any more.</p>"
            "<p>Get in again with <code>tidegate open</code>.</p>"
        ),
    )
    answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def home(request: HttpRequest) -> Response:
    """The start page of a user who is signed in."""
    found, principal = await status.status_of(request.runtime, request.tenant), request.principal
    parts = [
        text(
            "<h1>Tidegate</h1><p>Signed in as <strong>{}</strong> in the tenant <strong>{}</strong>: {}.</p>",
            principal.user,
            principal.tenant,
            ", ".join(role_names(principal.roles)),
        ),
        text(
            "<p>Version {}, up for {} s, {} messages a second.</p>",
            found.version,
            round(found.uptime_seconds),
            found.messages_per_second,
        ),
        _table(
            "Topics",
            ("name", "partitions", "messages"),
            [(one.name, len(one.partitions), one.messages) for one in found.topics],
        ),
        _table(
            "Pipelines",
            ("name", "state", "rows"),
            [(one.name, one.state, one.rows) for one in found.pipelines],
        ),
        _table("Tables", ("name", "version", "bytes"), [_table_cells(one) for one in found.tables]),
        text(
            '<h2>Read on</h2><p><a href="/docs">Every endpoint of this server</a>. The guides are in the '
            "folder <code>docs</code> that comes with Tidegate; <code>tidegate --help</code> lists every "
            "command.</p>"
        ),
        text("<form method=post action=/leave><button>Sign out</button></form>"),
    ]
    return page_answer("Tidegate", join(*parts))


def _table_cells(table: LakeTableResponse) -> tuple[Any, ...]:
    if table.version is None:
        return table.name, "unreadable", ""
    return table.name, table.version, table.bytes


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Markup:
    heading = text("<h2>{}</h2>", title)
    if not rows:
        return join(heading, text("<p>None yet.</p>"))
    top = join(*(text("<th scope=col>{}</th>", column) for column in columns))
    lines = [
        join(
            text("<tr><th scope=row>{}</th>", row[0]),
            *(text("<td>{}</td>", _cell_text(cell)) for cell in row[1:]),
            text("</tr>"),
        )
        for row in rows[:TABLE_ROWS_MAX]
    ]
    left = len(rows) - TABLE_ROWS_MAX
    more = text("<p>And {} more.</p>", left) if left > 0 else text("")
    # A wide table scrolls in a box of its own, reachable by keyboard, so that the page itself never does.
    box = text('<div class=wide tabindex=0 role=region aria-label="{}"><table><thead><tr>', title)
    return join(heading, box, top, text("</tr></thead><tbody>"), *lines, text("</tbody></table></div>"), more)


def _cell_text(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _check_origin(request: HttpRequest) -> None:
    """Raise OriginRefused for the form of another site, which could sign this browser in as someone else.

    What sends no Origin is no browser, and keeps no session.
    """
    origin = request.header("origin")
    if origin:
        check_origin(origin, request.header("host"), request.runtime.settings.server)


async def _form_code(request: HttpRequest) -> str:
    kind = request.content_type()
    if kind != FORM:
        raise ContentTypeUnsupported(content_type=kind[:80] or "(none)", supported=FORM)
    # The client is not authenticated yet: its declared length bounds what is read.
    declared = request.header("content-length")
    if not declared.isdigit():
        raise RequestMalformed(reason="it comes without its length", hint="Send a Content-Length.")
    if int(declared) > FORM_BYTES_MAX:
        raise BodyTooLarge(limit_bytes=FORM_BYTES_MAX)
    try:
        fields = dict(parse_qsl((await request.body()).decode("ascii"), errors="strict", max_num_fields=10))
    except ValueError as problem:
        raise RequestMalformed(reason="it is not an encoded form", hint=f"Send {FORM}.") from problem
    code = fields.get("code", "")
    if not code:
        raise LinkWrong
    return code
