"""The log: one line for each record, as text or as JSON, without secrets.

`start_logging` puts one handler on the root logger. A line is text (`time level logger: message (request
…)`), or one JSON object. The request of a record comes from `set_request_context`, which the HTTP application
calls. Everything that is logged, by Tidegate or by a library, in the message, its arguments, its extra fields
or a traceback, goes through `redaction`. Any thread may log.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from tidegate.model.names import escape_surrogates
from tidegate.settings import LogSettings
from tidegate.telemetry.redaction import redact, redact_value

# Libraries that log each request, call or statement; lines of sqlalchemy would contain stored data.
VERBOSE_LOGGERS = ("alembic", "httpx", "httpcore", "py4j", "sqlalchemy", "urllib3", "opentelemetry")
# Longer texts are cut.
TEXT_CHARS_MAX = 32_000
CUT = " …[cut]"

# The attributes of every record; all others came with `extra=`.
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# Names of a JSON line that an extra field cannot take.
_LINE_FIELDS = frozenset({"time", "level", "logger", "message", "process", "pid", "requestId", "tenant"})
_TAKEN = _LINE_FIELDS | {"user", "errorType", "traceback", "stack"}
# Control characters could move a terminal's cursor or forge a line.
_CONTROLS = {
    number: f"\\x{number:02x}" for number in [*range(32), 127, *range(128, 160)] if number not in (9, 10)
}

_Context = tuple[str, str, str]
_NOBODY: _Context = ("", "", "")
_context: ContextVar[_Context] = ContextVar("tidegate_request", default=_NOBODY)


def set_request_context(request_id: str, tenant: str = "", user: str = "") -> None:
    """Set the request, tenant and user of this task's log lines, for the rest of the task.

    Costs less than a microsecond.
    """
    _context.set((request_id, tenant, user))


@dataclass(slots=True)
class LineCounts:
    """The numbers of warnings, of lines at level error or above, and of lines that could not be written."""

    warnings: int = 0
    errors: int = 0
    lost: int = 0


def start_logging(settings: LogSettings, stream: TextIO, process_name: str) -> None:
    """Send the log of this process to a stream; a second call replaces the first."""
    root = logging.getLogger()
    for logger in [root, *_loggers()]:
        # A handler that a library has installed would bypass the redaction.
        for foreign in list(logger.handlers):
            logger.removeHandler(foreign)
        if logger is not root:
            logger.propagate = True
    root.addHandler(LineHandler(stream, _formatter(settings.format, process_name)))
    root.setLevel(settings.level.upper())
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    sys.excepthook = _log_crash
    threading.excepthook = _log_thread_crash


def line_counts() -> LineCounts:
    """Return the counts since `start_logging`; zeros before."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            return handler.counts
    return LineCounts()


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines and counts them; an error in formatting or writing never reaches the caller."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self.counts = LineCounts()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; under the handler's lock."""
        if record.levelno >= logging.ERROR:
            self.counts.errors += 1
        elif record.levelno >= logging.WARNING:
            self.counts.warnings += 1
        try:
            self.stream.write(self.format(record) + self.terminator)
            self.flush()
        except Exception:  # noqa: BLE001 - nowhere to log it; logging itself would print the arguments
            self.counts.lost += 1


class _TextFormatter(logging.Formatter):
    """`2026-01-31T08:00:00.123Z INFO tidegate.server.serve: serving home=… (request 5f3a, tenant acme)`."""

    def format(self, record: logging.LogRecord) -> str:
        request_id, tenant, user = map(redact, _context.get())
        where = {"request": request_id, "tenant": tenant, "user": user}
        notes = [f"{name} {value}" for name, value in where.items() if value]
        notes += [f"{name}={redact_value(name, value)}" for name, value in _extra(record).items()]
        time_text = _time_text(record.created, "milliseconds")
        line = f"{time_text} {record.levelname} {record.name}: {_message(record)}"
        line += f" ({', '.join(notes)})" if notes else ""
        # Further lines of a message are indented, so that none of them looks like a record.
        line = line.translate(_CONTROLS).replace("\n", "\n    ")
        lines = [line, *(text.translate(_CONTROLS) for text in _traces(record).values())]
        return escape_surrogates("\n".join(lines))


class _JsonFormatter(logging.Formatter):
    """One object a line."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        request_id, tenant, user = map(redact, _context.get())
        line: dict[str, Any] = {
            "time": _time_text(record.created, "microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            "process": self._process_name,
            "pid": record.process,
        }
        line |= {
            name: value
            for name, value in (("requestId", request_id), ("tenant", tenant), ("user", user))
            if value
        }
        for name, value in _extra(record).items():
            line[f"{name}_" if name in _TAKEN else name] = redact_value(name, value)
        line |= _traces(record)
        if record.exc_info and record.exc_info[0] is not None:
            line["errorType"] = record.exc_info[0].__name__
        return escape_surrogates(json.dumps(line, ensure_ascii=False, default=str))


def _formatter(form: str, process_name: str) -> logging.Formatter:
    return _JsonFormatter(process_name) if form == "json" else _TextFormatter()


def _message(record: logging.LogRecord) -> str:
    """Return the message without secrets, also where its arguments do not fit it."""
    try:
        text = record.getMessage()
    except Exception as problem:  # noqa: BLE001 - reported in the line itself
        text = f"{record.msg!r} with arguments that do not fit it ({type(problem).__name__}: {problem})"
    return _cut(redact(text))


def _traces(record: logging.LogRecord) -> dict[str, str]:
    found: dict[str, str] = {}
    if record.exc_info and record.exc_info[0] is not None:
        # Not record.exc_text: it is shared with other handlers, and may be unredacted.
        found["traceback"] = _cut(redact(logging.Formatter().formatException(record.exc_info)))
    if record.stack_info:
        found["stack"] = _cut(redact(record.stack_info))
    return found


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}


def _cut(text: str) -> str:
    """Cut after the redaction: half a secret would no longer look like one."""
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + CUT


def _time_text(seconds: float, precision: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _loggers() -> list[logging.Logger]:
    known = logging.Logger.manager.loggerDict.values()
    return [logger for logger in known if isinstance(logger, logging.Logger)]


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log = logging.getLogger("tidegate")
    log.critical("uncaught exception, the process ends", exc_info=(kind, error, trace))


def _log_thread_crash(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_value is None or issubclass(crash.exc_type, SystemExit):
        return
    name = crash.thread.name if crash.thread else "unknown"
    error = (crash.exc_type, crash.exc_value, crash.exc_traceback)
    log = logging.getLogger("tidegate")
    log.critical("uncaught exception, the thread ends thread=%s", name, exc_info=error)
