"""`tidegate audit`: the events of the audit trail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_actions, complete_users
from tidegate.cli.hints import UsageRefused
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import cell_time

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
    if action is not None:
        _check_action(action)
    with call.client() as client:
        events = client.audit.list(user=user, action=action, limit=limit)
    call.answer({"events": events}, lambda: events_table(events))


def _check_action(action: str) -> None:
    """Raise UsageRefused for an action that no event can have: an empty list would look like an answer."""
    from difflib import get_close_matches

    known = complete_actions("")
    if action in known:
        return
    near = get_close_matches(action, known, n=1)
    ending = f"did you mean '{near[0]}'?" if near else f"actions are {', '.join(known)}."
    raise UsageRefused(f"'{action[:80]}' is not an action: {ending}")


def events_table(events: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of events."""
    from tidegate.cli.output.tables import Listing

    if not events:
        return "No events."
    rows = [
        (
            cell_time(entry["at"]),
            entry["user"],
            entry["action"],
            entry["subject"],
            entry["outcome"],
            details_text(entry["details"]),
        )
        for entry in events
    ]
    headings = ("at (UTC)", "user", "action", "subject", "outcome", "details")
    return Listing(headings, rows, whole=(1, 2, 3, 4), spare=(5,))


def details_text(details: Mapping[str, Any]) -> str:
    """Return the details of an event as text: `roles: a, b; expires: 2026-01-31T12:00:00Z`."""
    return "; ".join(
        _detail_text(name, value) for name, value in details.items() if value not in ("", [], {})
    )


def _detail_text(name: str, value: Any) -> str:
    if name.endswith("_us"):
        from tidegate.model.times import format_time

        return f"{name.removesuffix('_us')}: {'never' if value is None else format_time(value)}"
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return f"{name}: {', '.join(value)}"
    return f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
