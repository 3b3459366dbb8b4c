"""Pages for people with a browser: what runs, how to get in, and the one-time link that lets a browser in.

A link is opened with a GET and used up with a POST. Chat programs, mail scanners and browsers fetch a link
before the person who got it does, and would use it up; none of them presses a button. So the GET shows a
page with a button and changes nothing, and only the form behind the button, a POST to the same path, trades
the code for a session. Pages need no script: the policy below allows none.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import RedirectResponse, Response

from tidegate.catalog.audit import Actor
from tidegate.errors import (
    BodyTooLarge,
    ContentTypeUnsupported,
    InvariantBroken,
    LinkWrong,
    OriginRefused,
    RequestInvalid,
    RequestMalformed,
    TidegateError,
    TokenWrong,
)
from tidegate.model.timeranges import format_time
from tidegate.server.api import status
from tidegate.server.api.users import role_names
from tidegate.server.http.request import SESSION_COOKIE, Call
from tidegate.server.http.responses import json_answer
from tidegate.server.pages.html import Markup, join, page_answer, text

FORM = "application/x-www-form-urlencoded"
# A code and its name fit many times over; nobody who is not let in sends us more.
FORM_BYTES_MAX = 4096
ENTER_PATH = "/enter"
# A page is for a look; lists without an end are what the API has pages for.
TABLE_ROWS_MAX = 100


class LinkAnswer(msgspec.Struct, rename="camel"):
    """A one-time link."""

    url: str
    expires_at: str


def wants_page(call: Call) -> bool:
    """Return whether a person with a browser looks at this address; the API answers programs alone."""
    return "text/html" in call.header("accept") and not call.path.startswith("/api/")


def refusal_page(problem: TidegateError) -> Response:
    """Return in a browser why the door stays shut, and how to get in."""
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
        # What the browser holds is worth nothing: sent again and again, it would count as guessing.
        answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def create_link(call: Call) -> Response:
    """A link that lets one browser in, once, as whoever asks with a token, in their own tenant."""
    running = call.running
    seconds, make = running.settings.auth.link_seconds, running.catalog.tokens.make_link
    made = await running.threads.catalog(make, call.principal, seconds, call.request_id)
    url = f"{running.url.rstrip('/')}{ENTER_PATH}?code={made.code}"
    return json_answer(LinkAnswer(url, format_time(made.expires_us)), 201)


async def show_enter(call: Call) -> Response:
    """The page behind a one-time link: a button, because looking at a link must not use it up."""
    code = call.query.get("code", "")
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


async def use_enter(call: Call) -> Response:
    """A one-time link is used up, and the browser holds a session."""
    _check_origin(call)
    code = await _form_code(call)
    running = call.running
    seconds = running.settings.auth.session_hours * 3600
    use_link = running.catalog.tokens.use_link
    with running.identities.brake.guess(call.address):
        made = await running.threads.catalog(use_link, code, seconds, call.request_id)
    if made.expires_us is None:
        raise InvariantBroken(reason="a session has no end")
    answer = RedirectResponse("/", 303, {"Cache-Control": "no-store"})
    answer.set_cookie(
        SESSION_COOKIE,
        made.text,
        # The browser forgets it when it ends, which may be earlier than usual: with the link's token.
        max_age=max(1, (made.expires_us - running.clock.now_us()) // 1_000_000),
        path="/",
        secure=running.url.startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return answer


async def leave(call: Call) -> Response:
    """The browser's session ends, here and for everyone who may have copied its cookie."""
    if call.header("authorization"):
        reason = "This ends the session of a browser, and no browser's cookie came."
        raise RequestInvalid(reason=reason, hint="A token ends with 'tidegate user revoke'.")
    running, mine = call.running, call.principal
    actor = Actor(mine.own_tenant, mine.user, call.request_id)
    revoke = running.catalog.tokens.revoke
    await running.threads.catalog(revoke, actor, mine.own_tenant, mine.user, mine.token_id)
    await running.identities.refresh()
    answer = page_answer(
        "Signed out",
        text(
            "<h1>Signed out</h1><p>This browser holds no session any more.</p>"
            "<p>Get in again with <code>tidegate open</code>.</p>"
        ),
    )
    answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def home(call: Call) -> Response:
    """What runs, for someone who is signed in."""
    answer = await status.status(call)
    shown: dict[str, Any] = msgspec.json.decode(bytes(answer.body))
    mine = call.principal
    parts = [
        text(
            "<h1>Tidegate</h1><p>Signed in as <strong>{}</strong> in the tenant <strong>{}</strong>: {}.</p>",
            mine.user,
            mine.tenant,
            ", ".join(role_names(mine.roles)),
        ),
        text(
            "<p>Version {}, up for {} s, {} messages a second.</p>",
            shown["version"],
            round(shown["uptimeSeconds"]),
            shown["messagesPerSecond"],
        ),
        _table("Topics", ("name", "partitions", "messages"), [_topic_cells(one) for one in shown["topics"]]),
        _table(
            "Pipelines",
            ("name", "state", "rows"),
            [(one["name"], one["state"], one["rows"]) for one in shown["pipelines"]],
        ),
        _table("Tables", ("name", "version", "bytes"), [_table_cells(one) for one in shown["tables"]]),
        text(
            '<h2>Read on</h2><p><a href="/docs">Every endpoint of this server</a>. The guides are in the '
            "folder <code>docs</code> that comes with Tidegate; <code>tidegate --help</code> lists every "
            "command.</p>"
        ),
        text("<form method=post action=/leave><button>Sign out</button></form>"),
    ]
    return page_answer("Tidegate", join(*parts))


def _topic_cells(topic: dict[str, Any]) -> tuple[Any, ...]:
    return topic["name"], len(topic["partitions"]), topic["messages"]


def _table_cells(table: dict[str, Any]) -> tuple[Any, ...]:
    if table["version"] is None:
        return table["name"], "unreadable", ""
    return table["name"], table["version"], table["bytes"]


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Markup:
    heading = text("<h2>{}</h2>", title)
    if not rows:
        return join(heading, text("<p>None yet.</p>"))
    top = join(*(text("<th scope=col>{}</th>", column) for column in columns))
    lines = [
        join(
            text("<tr><th scope=row>{}</th>", row[0]),
            *(text("<td>{}</td>", _shown(cell)) for cell in row[1:]),
            text("</tr>"),
        )
        for row in rows[:TABLE_ROWS_MAX]
    ]
    left = len(rows) - TABLE_ROWS_MAX
    more = text("<p>And {} more.</p>", left) if left > 0 else text("")
    # A wide table scrolls in its own box, which the keyboard can reach, so that the page itself never does.
    box = text('<div class=wide tabindex=0 role=region aria-label="{}"><table><thead><tr>', title)
    return join(heading, box, top, text("</tr></thead><tbody>"), *lines, text("</tbody></table></div>"), more)


def _shown(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _check_origin(call: Call) -> None:
    """Refuse the form of another site: it would sign this browser in as someone of that site's choice."""
    origin = call.header("origin")
    if origin and origin.partition("://")[2] != call.header("host"):
        raise OriginRefused(origin=origin[:80])


async def _form_code(call: Call) -> str:
    kind = call.content_type()
    if kind != FORM:
        raise ContentTypeUnsupported(content_type=kind[:80] or "(none)", supported=FORM)
    # Nobody is let in yet: what is read here is told by the length that comes before it.
    declared = call.header("content-length")
    if not declared.isdigit():
        raise RequestMalformed(reason="it comes without its length", hint="Send a Content-Length.")
    if int(declared) > FORM_BYTES_MAX:
        raise BodyTooLarge(limit_bytes=FORM_BYTES_MAX)
    try:
        fields = dict(parse_qsl((await call.body()).decode("ascii"), errors="strict", max_num_fields=10))
    except ValueError as problem:
        raise RequestMalformed(reason="it is not an encoded form", hint=f"Send {FORM}.") from problem
    code = fields.get("code", "")
    if not code:
        raise LinkWrong
    return code
