"""Shell completion of topics, users, pipelines and other names, from the running server.

A key press waits for the answer: one request to the server, a second at most, no heavy import. Where there is
no server, no home or no permission, nothing is offered and no error is shown.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import typer

# Whoever presses Tab waits for this.
ANSWER_SECONDS_MAX = 1.0
# More names than this no shell shows, and no one reads.
NAMES_MAX = 500
JOB_STATES = ("queued", "running", "done", "failed", "cancelled")
# Actions in the audit trail that are no operations of a role.
ACTIONS_WITHOUT_A_ROLE = (
    "job.cancel",
    "link.use",
    "login.refuse",
    "role.refuse",
    "tenant.enter",
    "user.delete_rows",
)
STARTS = (
    ("earliest", "the oldest message that is kept"),
    ("latest", "what comes from now on"),
)


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics."""
    return _names(ctx, "topics", incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the consumer groups of the topic that was typed before."""
    from urllib.parse import quote

    # An option without its value ends the parsing of a line before its arguments have their names.
    topic = ctx.params.get("topic") or next(iter(ctx.args), None)
    if not isinstance(topic, str):
        return []
    known = _list(ctx, f"topics/{quote(topic, safe='')}/groups", "groups")
    return [
        (entry["group"], f"lag {entry.get('lag', 0):,}")
        for entry in known
        if entry["group"].startswith(incomplete)
    ]


def complete_pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the pipelines: those that the worker reports, and those whose files are in the home."""
    from tidegate.cli.installed_pipelines import pipeline_names

    here = [name for name in pipeline_names(_home(ctx)) if name.startswith(incomplete)]
    return sorted({*here, *_names(ctx, "pipelines", incomplete)})


def complete_users(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the users of the tenant."""
    return _names(ctx, "users", incomplete)


def complete_tokens(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the tokens of the user that was typed before."""
    from urllib.parse import quote

    user = ctx.params.get("user")
    if not isinstance(user, str):
        return []
    known = _list(ctx, f"users/{quote(user, safe='')}/tokens", "tokens")
    return [
        (entry["id"], entry.get("label") or entry.get("kind", ""))
        for entry in known
        if not entry.get("endedAt") and entry["id"].startswith(incomplete)
    ]


def complete_tenants(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tenants, for those who may list them."""
    return _names(ctx, "tenants", incomplete)


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs, each with its kind and state."""
    known = _list(ctx, "jobs", "jobs")
    return [
        (entry["id"], f"{entry['kind']}, {entry['state']}")
        for entry in known
        if entry["id"].startswith(incomplete)
    ]


def complete_roles(incomplete: str) -> list[str]:
    """Return the roles, the short forms first."""
    from tidegate.model.access import ROLE_SHORTS, Role

    return [word for word in (*ROLE_SHORTS, *map(str, Role)) if word.startswith(incomplete)]


def complete_actions(incomplete: str) -> list[str]:
    """Return the actions of the audit trail."""
    from tidegate.model.access import Operation

    known = [*map(str, Operation), *ACTIONS_WITHOUT_A_ROLE]
    return [word for word in known if word.startswith(incomplete)]


def complete_job_states(incomplete: str) -> list[str]:
    """Return the states of a job."""
    return [word for word in JOB_STATES if word.startswith(incomplete)]


def complete_starts(incomplete: str) -> list[tuple[str, str]]:
    """Return the words after --from and --to; offsets and times cannot be completed."""
    return [(word, meaning) for word, meaning in STARTS if word.startswith(incomplete)]


def _names(ctx: typer.Context, noun: str, incomplete: str) -> list[str]:
    return sorted(entry["name"] for entry in _list(ctx, noun, noun) if entry["name"].startswith(incomplete))


def _list(ctx: typer.Context, path: str, noun: str) -> list[dict[str, Any]]:
    """Return one page of a list of the server; nothing where no answer comes."""
    from tidegate.cli.http_request import REQUEST_ERRORS, send_request
    from tidegate.errors import TidegateError
    from tidegate.storage.home.address import find_server

    home = _option(ctx, "home")
    tenant = _option(ctx, "tenant_name") or os.environ.get("TIDEGATE_TENANT")
    try:
        server = find_server(None, None, Path(home) if home else None)
        _, body = send_request(
            "GET",
            f"{server.url.rstrip('/')}/api/v1/{path}",
            timeout_seconds=ANSWER_SECONDS_MAX,
            tls_context=server.tls_context() if server.is_https else None,
            headers={"Authorization": f"Bearer {server.token}", **({"X-Tenant": tenant} if tenant else {})},
        )
        return list(json.loads(body)[noun][:NAMES_MAX])
    except (TidegateError, *REQUEST_ERRORS, ValueError, KeyError, TypeError):
        return []  # a shell that completes has nowhere to show an error


def _option(ctx: typer.Context, name: str) -> str | None:
    """Return the value of an option that was typed, after the verb or before the noun."""
    level: Any = ctx
    while level is not None:
        if level.params.get(name):
            return str(level.params[name])
        level = level.parent
    return None


def _home(ctx: typer.Context) -> Path:
    from tidegate.cli.output.format import HOME_DEFAULT

    return Path(_option(ctx, "home") or os.environ.get("TIDEGATE_HOME") or HOME_DEFAULT).expanduser()
