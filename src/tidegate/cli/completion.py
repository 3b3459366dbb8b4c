"""Words that a shell completes: takes what is typed so far, gives names from the running server.

A key press waits for the answer: one question to the server, a second at most, no heavy import. Where there
is no server, no home or no right to ask, nothing is offered and nothing is said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from tidegate.storage.home.address import Found

# Whoever presses Tab waits for this.
ANSWER_SECONDS_MAX = 1.0
# More names than this no shell shows, and no one reads.
NAMES_MAX = 500
JOB_STATES = ("queued", "running", "done", "failed", "cancelled")
# What the audit trail speaks of beside the operations that a role allows.
ACTIONS_WITHOUT_A_DOOR = ("job.cancel", "link.use")
STARTS = (
    ("earliest", "the oldest message that is kept"),
    ("latest", "what comes from now on"),
)


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the topics."""
    return _names(ctx, "topics", incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer the consumer groups of the topic that was typed before."""
    from urllib.parse import quote

    # An option without its value ends the reading of a line before its arguments have got their names.
    topic = ctx.params.get("topic") or next(iter(ctx.args), None)
    if not isinstance(topic, str):
        return []
    known = _asked(ctx, f"topics/{quote(topic, safe='')}/groups", "groups")
    return [
        (entry["group"], f"lag {entry.get('lag', 0):,}")
        for entry in known
        if entry["group"].startswith(incomplete)
    ]


def complete_pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the pipelines: those that the worker reports, and those whose files are in the home."""
    from tidegate.cli.installed_pipelines import kept_names

    here = [name for name in kept_names(_home(ctx)) if name.startswith(incomplete)]
    return sorted({*here, *_names(ctx, "pipelines", incomplete)})


def complete_users(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the users of the tenant."""
    return _names(ctx, "users", incomplete)


def complete_tokens(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer the tokens of the user that was typed before."""
    from urllib.parse import quote

    user = ctx.params.get("user")
    if not isinstance(user, str):
        return []
    known = _asked(ctx, f"users/{quote(user, safe='')}/tokens", "tokens")
    open_ones = [entry for entry in known if not entry.get("endedAt")]
    return [
        (entry["id"], entry.get("label") or entry.get("kind", ""))
        for entry in open_ones
        if entry["id"].startswith(incomplete)
    ]


def complete_tenants(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the tenants, to those who may list them."""
    return _names(ctx, "tenants", incomplete)


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer the jobs, each with what it is."""
    known = _asked(ctx, "jobs", "jobs")
    return [
        (entry["id"], f"{entry['kind']}, {entry['state']}")
        for entry in known
        if entry["id"].startswith(incomplete)
    ]


def complete_roles(incomplete: str) -> list[str]:
    """Offer the roles, the short forms first."""
    from tidegate.model.access import ROLE_SHORTS, Role

    return [word for word in (*ROLE_SHORTS, *map(str, Role)) if word.startswith(incomplete)]


def complete_actions(incomplete: str) -> list[str]:
    """Offer what the audit trail speaks of."""
    from tidegate.model.access import Operation

    known = [*map(str, Operation), *ACTIONS_WITHOUT_A_DOOR]
    return [word for word in known if word.startswith(incomplete)]


def complete_job_states(incomplete: str) -> list[str]:
    """Offer the states of a job."""
    return [word for word in JOB_STATES if word.startswith(incomplete)]


def complete_starts(incomplete: str) -> list[tuple[str, str]]:
    """Offer the words after --from and --to; offsets and times are for people to know."""
    return [(word, meaning) for word, meaning in STARTS if word.startswith(incomplete)]


def _names(ctx: typer.Context, noun: str, incomplete: str) -> list[str]:
    return sorted(entry["name"] for entry in _asked(ctx, noun, noun) if entry["name"].startswith(incomplete))


def _asked(ctx: typer.Context, path: str, noun: str) -> list[dict[str, Any]]:
    """Ask the server for one page of a list; nothing where it cannot be had."""
    import http.client

    from tidegate.errors import TidegateError
    from tidegate.storage.home.address import find_server

    home = _typed(ctx, "home")
    try:
        found = find_server(None, None, Path(home) if home else None)
        page = _ask(found, path, _typed(ctx, "tenant_name") or os.environ.get("TIDEGATE_TENANT"))
        return list(page[noun][:NAMES_MAX])
    except (TidegateError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []  # a shell that completes has nowhere to show an error


def _ask(found: Found, path: str, tenant: str | None) -> Mapping[str, Any]:
    import http.client

    place = urlsplit(found.url)
    connection: http.client.HTTPConnection
    if found.is_https:
        connection = http.client.HTTPSConnection(
            place.netloc, timeout=ANSWER_SECONDS_MAX, context=found.tls_context()
        )
    else:
        connection = http.client.HTTPConnection(place.netloc, timeout=ANSWER_SECONDS_MAX)
    headers = {"Authorization": f"Bearer {found.token}", **({"X-Tenant": tenant} if tenant else {})}
    try:
        connection.request("GET", f"{place.path.rstrip('/')}/api/v1/{path}", headers=headers)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer


def _typed(ctx: typer.Context, name: str) -> str | None:
    """Return the value of an option that was typed, after the verb or before the noun."""
    level: Any = ctx
    while level is not None:
        if level.params.get(name):
            return str(level.params[name])
        level = level.parent
    return None


def _home(ctx: typer.Context) -> Path:
    from tidegate.cli.output.format import HOME_DEFAULT

    return Path(_typed(ctx, "home") or os.environ.get("TIDEGATE_HOME") or HOME_DEFAULT).expanduser()
