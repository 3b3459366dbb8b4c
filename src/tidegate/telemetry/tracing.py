"""Tracing: OpenTelemetry spans, if it is enabled.

It is disabled by default: then OpenTelemetry is not imported, and `span` returns the same empty object each
time. Otherwise ended spans wait in a bounded queue for a thread that sends them; a collector that is slow or
unavailable costs spans, never a request. Any thread or task may make spans; one made inside another is its
child.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tidegate.errors import StartRefused
from tidegate.settings import TracingSettings

if TYPE_CHECKING:
    from tidegate.telemetry.otlp import SpanExport

Value = str | int | float | bool
# OpenTelemetry's names of attributes; any other becomes `tidegate.<name>`.
ATTRIBUTE_NAMES = {
    "route": "http.route",
    "method": "http.request.method",
    "status": "http.response.status_code",
    "path": "url.path",
    "user": "enduser.id",
    "statement": "db.query.summary",
}
INSTALL_HINT = "pip install 'tidegate[tracing]', or leave tracing.endpoint_url empty."


class TraceSpan(Protocol):
    """A span, from the start of its `with` to the end; an error that leaves it is recorded."""

    def set(self, **attributes: Value) -> None:
        """Add attributes that became known meanwhile."""
        ...

    def __enter__(self) -> TraceSpan: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _NoSpan:
    """The empty span, shared by all callers while tracing is disabled."""

    __slots__ = ()

    def set(self, **attributes: Value) -> None:  # noqa: ARG002
        return None

    def __enter__(self) -> TraceSpan:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


NO_SPAN = _NoSpan()
_export: SpanExport | None = None


def start_tracing(settings: TracingSettings, service_name: str, version: str = "") -> None:
    """Start to send spans if an endpoint is set; raise StartRefused if the packages are not installed."""
    global _export  # noqa: PLW0603 - one for the process, as the log is
    if not settings.endpoint_url:
        return
    try:
        from tidegate.telemetry.otlp import SpanExport
    except ImportError as problem:
        reason = f"Tracing is on (tracing.endpoint_url), but '{problem.name}' is not installed."
        raise StartRefused(reason=reason, hint=INSTALL_HINT) from problem
    stop_tracing()
    _export = SpanExport(settings, service_name, version)


def stop_tracing() -> None:
    """Send pending spans, for a few seconds at most, and stop; does nothing if tracing is disabled."""
    global _export
    ending, _export = _export, None
    if ending is not None:
        ending.stop()


def is_tracing() -> bool:
    """True if spans are sent; for callers that would work only to describe one."""
    return _export is not None


def span(name: str, remote_parent: str | None = None, **attributes: Value) -> TraceSpan:
    """Return a span to use with `with`.

    `remote_parent` is the traceparent header of a request, empty where there is none; an invalid one counts
    as none.
    """
    if _export is None:
        return NO_SPAN
    return _export.span(name, remote_parent, attributes)


def traceparent() -> str:
    """Return the W3C traceparent of the current span, for requests to others; empty without one."""
    return "" if _export is None else _export.traceparent()
