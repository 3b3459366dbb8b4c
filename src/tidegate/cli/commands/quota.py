"""The option and the table of `tidegate tenant quota` and `tidegate user quota`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.hints import UsageRefused
from tidegate.cli.output.format import bytes_text, count_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.sdk.types import TenantQuotaDict, UserQuotaDict

# Instead of a number: the limit of the settings.
FROM_SETTINGS = "default"
# The names of quotas as they are typed, and on the wire.
TENANT_QUOTAS = {
    "requests-per-second": "requestsPerSecond",
    "published-bytes-per-second": "publishedBytesPerSecond",
    "topics": "topics",
    "groups": "groups",
    "tables": "tables",
    "disk-bytes": "diskBytes",
}
USER_QUOTAS = dict(list(TENANT_QUOTAS.items())[:2])

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=LIMIT",
        help=f"Change a limit: a number, 0 for none, '{FROM_SETTINGS}' for that of the settings. Repeatable.",
    ),
]


def new_limits(changes: Sequence[str], names: Mapping[str, str] = TENANT_QUOTAS) -> dict[str, int | None]:
    """Return the limits of NAME=LIMIT by their names on the wire; None is that of the settings."""
    limits: dict[str, int | None] = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in names:
            raise UsageRefused(f"There is no quota '{name}' here; these are: {', '.join(names)}.")
        limits[names[name]] = _limit(text)
    return limits


def _limit(text: str) -> int | None:
    if text == FROM_SETTINGS:
        return None
    plain = text.replace("_", "")
    if not plain.isascii() or not plain.isdecimal():
        raise UsageRefused(f"'{text}' is not a limit: write a whole number, or '{FROM_SETTINGS}'.")
    return int(plain)


def quota_table(quota: TenantQuotaDict | UserQuotaDict) -> RenderableType:
    """Return a table of limits and what is used of them."""
    from tidegate.cli.output.tables import Listing

    entries: Mapping[str, Any] = {**quota}
    rows = []
    for name, wire_name in TENANT_QUOTAS.items():
        if wire_name in entries:
            use, shown = entries[wire_name], bytes_text if "bytes" in name else count_text
            limit = shown(use["limit"]) if use["limit"] else "none"
            origin = "its own" if wire_name in entries["own"] else "settings"
            rows.append((name, shown(use["used"]), limit, origin))
    return Listing(("quota", "used", "limit", "from"), rows, right=(1, 2))
