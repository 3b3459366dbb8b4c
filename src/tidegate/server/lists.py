"""Lists: checks what is asked of a list before anything is read for it."""

from __future__ import annotations

from tidegate.catalog.pages import Page
from tidegate.errors import RequestInvalid
from tidegate.model.names import shorten
from tidegate.model.timeranges import format_time
from tidegate.server.call import Call


def list_page(call: Call) -> Page:
    """Give the part of a list that is asked for; a parameter that the list does not know is refused.

    A filter with a slip in its name would else show everything, and look as if everything matched.
    """
    known = call.route.query if call.route is not None else ()
    for name in call.query:
        if name not in known:
            reason = f"This list has no parameter '{shorten(name)}'."
            raise RequestInvalid(reason=reason, hint=f"It has {', '.join(known)}.")
    return call.page()


def moment(at_us: int | None) -> str | None:
    """Give a moment as text, or None where there is none."""
    return None if at_us is None else format_time(at_us)
