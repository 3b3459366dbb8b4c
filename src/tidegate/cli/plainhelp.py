"""Help as people read it: takes the commands that Typer builds, gives flags without a type behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    import typer


class PlainCommand(TyperCommand):
    """A command whose help shows `--json`, not `--json <bool>`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Give the parameters, flags without a word for a value."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group whose help does the same."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Give the parameters, flags without a word for a value."""
        return _plain(super().get_params(ctx))


def _plain(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
