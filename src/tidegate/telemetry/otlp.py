"""The export of spans with OpenTelemetry's SDK, OTLP over HTTP; imported only if tracing is enabled.

It has a provider of its own and never touches OpenTelemetry's global one, so that a program which embeds
Tidegate keeps its own tracing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType

from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidegate.errors import RequestRefused, TidegateError
from tidegate.settings import TracingSettings
from tidegate.telemetry.redaction import redact
from tidegate.telemetry.tracing import ATTRIBUTE_NAMES, Value

# Ended spans that wait to be sent, some 2 MB; beyond that the oldest are dropped.
QUEUE_SPANS_MAX = 4096
BATCH_SPANS_MAX = 512
SEND_INTERVAL_MS = 1000
SEND_SECONDS_MAX = 5.0
# Time that a stopping server has for spans that were not sent yet.
STOP_SECONDS_MAX = 3.0
HEADER = "traceparent"

log = logging.getLogger(__name__)


class SpanExport:
    """Makes and sends spans; any thread."""

    def __init__(self, settings: TracingSettings, service_name: str, version: str) -> None:
        # The SDK logs every failed attempt; `_LoggingExporter` logs the first.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        named = {"service.name": service_name, "service.version": version}
        self._exporter = _LoggingExporter(settings.endpoint_url)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=Resource.create({name: value for name, value in named.items() if value}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=QUEUE_SPANS_MAX,
                schedule_delay_millis=SEND_INTERVAL_MS,
                max_export_batch_size=BATCH_SPANS_MAX,
            )
        )
        self._tracer = self._provider.get_tracer("tidegate", version)
        self._wire = TraceContextTextMapPropagator()

    def span(self, name: str, remote_parent: str | None, attributes: Mapping[str, Value]) -> SentSpan:
        """Return a span that starts at its `with`."""
        return SentSpan(self, name, remote_parent, attributes)

    def begin(self, name: str, remote_parent: str | None, attributes: Mapping[str, Value]) -> Span:
        """Start a span: a child of the remote one, or of the current one."""
        if remote_parent is None:
            return self._tracer.start_span(name, None, SpanKind.INTERNAL, _otel_attributes(attributes))
        parent = self._wire.extract({HEADER: remote_parent})
        return self._tracer.start_span(name, parent, SpanKind.SERVER, _otel_attributes(attributes))

    def traceparent(self) -> str:
        """Return the traceparent header of the current span; empty if there is none."""
        carrier: dict[str, str] = {}
        self._wire.inject(carrier)
        return carrier.get(HEADER, "")

    def stop(self) -> None:
        """Send pending spans; give up if the collector does not accept them in time."""
        sending = threading.Thread(target=self._provider.shutdown, name="tidegate-last-spans", daemon=True)
        sending.start()
        sending.join(STOP_SECONDS_MAX)
        if sending.is_alive():
            log.warning("spans lost at stop, collector too slow seconds_max=%g", STOP_SECONDS_MAX)
            self._exporter.give_up()


class SentSpan:
    """A span that will be sent; belongs to the task or thread that enters it."""

    __slots__ = ("_attributes", "_export", "_name", "_open", "_remote_parent")

    def __init__(
        self, export: SpanExport, name: str, remote_parent: str | None, attributes: Mapping[str, Value]
    ) -> None:
        self._export = export
        self._name = name
        self._remote_parent = remote_parent
        self._attributes = attributes
        self._open: tuple[Span, Token[Context]] | None = None

    def set(self, **attributes: Value) -> None:
        if self._open is not None:
            self._open[0].set_attributes(_otel_attributes(attributes))

    def __enter__(self) -> SentSpan:
        begun = self._export.begin(self._name, self._remote_parent, self._attributes)
        self._open = begun, attach(set_span_in_context(begun))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is None:
            return
        begun, token = self._open
        if error is not None:
            _record_error(begun, error)
        detach(token)
        begun.end()


class _LoggingExporter(SpanExporter):
    """Sends spans; logs once that the collector does not accept them, and once that it does again."""

    def __init__(self, endpoint_url: str) -> None:
        self._endpoint_url = endpoint_url
        self._wire = OTLPSpanExporter(endpoint=endpoint_url, timeout=SEND_SECONDS_MAX)
        self._away = False
        self._stopped = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._wire.export(spans)
        is_sent = result is SpanExportResult.SUCCESS
        if not is_sent and not self._away:
            log.warning("spans lost, collector does not accept them endpoint=%s", self._endpoint_url)
        if is_sent and self._away:
            log.info("collector accepts spans again endpoint=%s", self._endpoint_url)
        self._away = not is_sent
        return result

    def shutdown(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Stop a running attempt; a second call does nothing."""
        if not self._stopped:
            self._stopped = True
            self._wire.shutdown()  # type: ignore[no-untyped-call]


def _record_error(begun: Span, error: BaseException) -> None:
    """Record an error; a mistake of the client does not mark the span as failed."""
    # Not record_exception: it would send the traceback unredacted.
    begun.set_attribute("error.type", type(error).__name__)
    if isinstance(error, TidegateError):
        begun.set_attribute(ATTRIBUTE_NAMES["status"], error.status)
    if not isinstance(error, RequestRefused):
        begun.set_status(Status(StatusCode.ERROR, redact(str(error))))


def _otel_attributes(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return attributes under their OpenTelemetry names, without secrets and without empty texts."""
    return {
        ATTRIBUTE_NAMES.get(name, f"tidegate.{name}"): redact(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value != ""
    }
