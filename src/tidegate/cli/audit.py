"""`tidegate audit`: who did what, when, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_actions, complete_users
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.show import table_of, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

LIMIT_DEFAULT = 50  # fits a screen or two; --limit gives more


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "audit", tenant=True)(audit)


def audit(
    call: Invocation,
    user: Annotated[
        str | None, typer.Option(help="What this user did.", autocompletion=complete_users)
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(help="This action only, such as user.create.", autocompletion=complete_actions),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most events.")] = LIMIT_DEFAULT,
) -> None:
    """Show who did what, the newest first."""
    with call.client() as client:
        events = client.audit.list(user=user, action=action, limit=limit)
    call.answer({"events": events}, lambda: events_table(events))


def events_table(events: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Draw events for people."""
    if not events:
        return "No events."
    rows = [
        (
            time_text(entry["at"]),
            entry["user"],
            entry["action"],
            entry["subject"],
            entry["outcome"],
            json.dumps(entry["details"], ensure_ascii=False) if entry["details"] else "",
        )
        for entry in events
    ]
    return table_of(("at", "user", "action", "subject", "outcome", "details"), rows)
