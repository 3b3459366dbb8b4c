"""Tracing: takes names and attributes, gives OpenTelemetry spans when it is on and one empty object when not.

Off is the default, and then nothing of OpenTelemetry is imported and `span` gives back the same empty object
each time. On, ended spans wait in a bounded queue for a thread that sends them; a collector that is slow or
away costs spans, never a request. Any thread or task may make spans; one made inside another is its child.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tidegate.errors import StartRefused
from tidegate.settings import TracingSettings

if TYPE_CHECKING:
    from tidegate.telemetry.otlp import Exporting

Value = str | int | float | bool
# What our short words are called in OpenTelemetry's conventions; any other becomes `tidegate.<word>`.
ATTRIBUTE_NAMES = {
    "route": "http.route",
    "method": "http.request.method",
    "status": "http.response.status_code",
    "path": "url.path",
    "user": "enduser.id",
    "statement": "db.query.summary",
}
INSTALL_HINT = "pip install 'tidegate[tracing]', or leave tracing.endpoint_url empty."


class Span(Protocol):
    """A stretch of work, from `with` to its end; an error that leaves it is noted."""

    def set(self, **attributes: Value) -> None:
        """Add what became known on the way."""
        ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _NoSpan:
    """A span of nothing; the one that everyone shares while tracing is off."""

    __slots__ = ()

    def set(self, **attributes: Value) -> None:  # noqa: ARG002
        return None

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


NO_SPAN = _NoSpan()
_exporting: Exporting | None = None


def start_tracing(settings: TracingSettings, service_name: str, version: str = "") -> None:
    """Begin to send spans when an endpoint is set; StartRefused when the packages for it are not there."""
    global _exporting  # noqa: PLW0603 - one for the program, as the log is
    if not settings.endpoint_url:
        return
    try:
        from tidegate.telemetry.otlp import Exporting
    except ImportError as problem:
        reason = f"Tracing is on (tracing.endpoint_url), but '{problem.name}' is not installed."
        raise StartRefused(reason=reason, hint=INSTALL_HINT) from problem
    stop_tracing()
    _exporting = Exporting(settings, service_name, version)


def stop_tracing() -> None:
    """Send what waits, for a few seconds at most, and stop; does nothing when tracing is off."""
    global _exporting
    ending, _exporting = _exporting, None
    if ending is not None:
        ending.stop()


def is_tracing() -> bool:
    """Return whether spans are sent; for a caller that would do work only to describe one."""
    return _exporting is not None


def span(name: str, remote_parent: str | None = None, **attributes: Value) -> Span:
    """Return a span to use with `with`.

    A door gives `remote_parent`, the traceparent header of whoever asked, empty where there is none; one that
    cannot be read counts as none.
    """
    if _exporting is None:
        return NO_SPAN
    return _exporting.span(name, remote_parent, attributes)


def traceparent() -> str:
    """Return the W3C traceparent of the span that is open here, for a call to others; empty without one."""
    return "" if _exporting is None else _exporting.traceparent()
