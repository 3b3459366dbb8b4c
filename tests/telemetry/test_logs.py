"""Logs: both formats say who and when, levels hold, and no secret gets through from anywhere."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.telemetry.test_redaction import FORMS, SECRET
from tidegate.settings import LogSettings
from tidegate.telemetry.logs import TEXT_CHARS_MAX, line_counts, set_request_context, start_logging
from tidegate.telemetry.redaction import keep_secret

ADMIN_TOKEN = "an-admin-token-that-looks-like-nothing-known"
LOGGERS = [
    "tidegate.server.app",
    "uvicorn.error",
    "sqlalchemy.engine.Engine",
    "httpx",
    "alembic",
    "asyncio",
]
log = logging.getLogger("tidegate.test")
# Other libraries of this process may have something to say meanwhile: py4j closes connections when it likes.
NAMES = frozenset([*LOGGERS, log.name, "x", "py.warnings"])

Start = Callable[..., io.StringIO]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start logging into a text, and put the log of the tests back at the end."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, sys.excepthook, threading.excepthook)

    def begin(form: str = "people", level: str = "info") -> io.StringIO:
        stream = io.StringIO()
        start_logging(LogSettings(format=form, level=level), stream, "server")
        for handler in root.handlers:
            handler.addFilter(lambda record: record.name in NAMES)
        return stream

    yield begin
    logging.captureWarnings(False)
    root.handlers[:], sys.excepthook, threading.excepthook = before[0], before[2], before[3]
    root.setLevel(before[1])


@contextmanager
def in_request(*names: str) -> Iterator[None]:
    set_request_context(*names)
    try:
        yield
    finally:
        set_request_context("")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_for_people_says_when_what_and_for_whom(start: Start) -> None:
    stream = start()
    log.info("stored %d messages", 3)
    with in_request("req-1", "acme", "alice"):
        log.warning("slow", extra={"took_ms": 12})
    log.info("after")
    first, second, third = stream.getvalue().splitlines()
    assert first[10] == "T"
    assert first[23:] == "Z INFO tidegate.test: stored 3 messages"
    assert second[23:] == "Z WARNING tidegate.test: slow (request req-1, tenant acme, user alice, took_ms=12)"
    assert third.endswith(": after")


def test_a_line_for_machines_has_the_promised_fields(start: Start) -> None:
    stream = start("json")
    with in_request("req-1", "acme", "alice"):
        try:
            raise ValueError("torn")
        except ValueError:
            log.exception("it broke ümläut", extra={"took_ms": 1.5, "level": "mine", "files": ["a", 1]})
    log.debug("not this one")
    (line,) = lines(stream)
    assert line.pop("time")[10] == "T"
    assert line.pop("traceback").splitlines()[-1] == "ValueError: torn"
    assert line.pop("pid") > 0
    assert line == {
        "level": "error",
        "logger": "tidegate.test",
        "message": "it broke ümläut",
        "process": "server",
        "requestId": "req-1",
        "tenant": "acme",
        "user": "alice",
        "took_ms": 1.5,
        "level_": "mine",
        "files": ["a", 1],
        "errorType": "ValueError",
    }


def test_the_time_is_utc_with_microseconds(start: Start) -> None:
    stream = start("json")
    record = logging.LogRecord("x", logging.INFO, "", 0, "m", (), None)
    record.created = 1_800_000_000.25
    logging.getLogger("x").handle(record)
    assert lines(stream)[0]["time"] == "2027-01-15T08:00:00.250000Z"


def test_lines_without_a_request_have_no_ids(start: Start) -> None:
    stream = start("json")
    with in_request("req-1"):
        log.info("a")
    log.info("b")
    first, second = lines(stream)
    assert first["requestId"] == "req-1"
    assert not {"tenant", "user"} & set(first)
    assert not {"requestId", "tenant", "user"} & set(second)


def test_tasks_do_not_see_each_others_requests(start: Start) -> None:
    stream = start("json")

    async def one(number: int) -> None:
        set_request_context(f"req-{number}", "t")
        await asyncio.sleep(0)
        log.info("in %d", number)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(20)))
        log.info("outside")

    asyncio.run(all_of_them())
    *inside, outside = lines(stream)
    assert len(inside) == 20
    assert all(line["requestId"] == line["message"].replace("in ", "req-") for line in inside)
    assert "requestId" not in outside


@pytest.mark.parametrize(
    ("level", "written"),
    [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")],
)
def test_the_level_is_the_least_that_is_written(start: Start, level: str, written: str) -> None:
    stream = start("json", level)
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert "".join(line["message"] for line in lines(stream)) == written


def test_libraries_with_a_line_for_each_call_stay_quiet_even_at_debug(start: Start) -> None:
    stream = start("json", "debug")
    logging.getLogger("sqlalchemy.engine.Engine").info("INSERT …")
    logging.getLogger("httpx").info("HTTP Request …")
    logging.getLogger("httpx").warning("this one")
    assert [line["message"] for line in lines(stream)] == ["this one"]


@pytest.mark.parametrize("form", ["people", "json"])
@pytest.mark.parametrize("name", LOGGERS)
def test_no_logger_writes_a_secret(start: Start, form: str, name: str) -> None:
    keep_secret(ADMIN_TOKEN)
    stream = start(form)
    logger = logging.getLogger(name)
    for text in [*FORMS, ADMIN_TOKEN]:
        logger.error(text)
        logger.error("said %s and %r", text, {"headers": text})
        logger.error("extra", extra={"said": text, "password": text, "nested": {"list": [text]}})
        logger.error({"raw": text})
        logger.error("args do not fit %d %s", text)  # noqa: PLE1206 - that is the point
        logger.error(f"{text} was 100%", "unused argument")
    assert_safe(stream.getvalue())
    assert line_counts().lost == 0
    assert line_counts().errors == 6 * (len(FORMS) + 1)


@pytest.mark.parametrize("form", ["people", "json"])
def test_no_traceback_shows_a_secret(start: Start, form: str) -> None:
    keep_secret(ADMIN_TOKEN)
    stream = start(form)
    for text in [*FORMS, ADMIN_TOKEN]:
        try:
            try:
                raise OSError(text)
            except OSError as first:
                first.add_note(f"note {text}")
                raise ValueError({"cause": text}) from first
        except ValueError:
            log.exception("failed", stack_info=True)
            log.error("failed %s", text, exc_info=True)
    shown = stream.getvalue()
    assert_safe(shown)
    assert "direct cause" in shown
    assert "Stack (most recent call last)" in shown


def assert_safe(shown: str) -> None:
    for secret in (SECRET, SECRET[-12:], ADMIN_TOKEN):
        found = shown.find(secret)
        assert found < 0, shown[max(0, found - 200) : found + 60]


def test_a_crash_of_a_thread_and_of_the_program_is_logged_without_the_secret() -> None:
    code = f"""
import sys, threading
from tidegate.settings import LogSettings
from tidegate.telemetry.logs import start_logging
start_logging(LogSettings(format="json"), sys.stderr, "server")
def fall():
    raise ValueError("password={SECRET}")
thread = threading.Thread(target=fall, name="a-thread"); thread.start(); thread.join()
fall()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    found = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["message"] for line in found] == [
        "uncaught exception, the thread ends thread=a-thread",
        "uncaught exception, the process ends",
    ]
    assert all(line["errorType"] == "ValueError" for line in found)
    assert SECRET not in ended.stderr


def test_warnings_of_python_go_to_the_log(start: Start) -> None:
    stream = start("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn(f"token={SECRET}", UserWarning, stacklevel=1)
    assert "[hidden]" in lines(stream)[0]["message"]
    assert SECRET not in stream.getvalue()


def test_a_handler_that_a_library_brought_is_taken_away(start: Start) -> None:
    past = io.StringIO()
    library = logging.getLogger("uvicorn.error")
    library.addHandler(logging.StreamHandler(past))
    library.propagate = False
    stream = start()
    library.error("hello")
    assert past.getvalue() == ""
    assert "hello" in stream.getvalue()


def test_starting_twice_writes_each_line_once(start: Start) -> None:
    first, second = start(), start()
    log.info("hello")
    assert first.getvalue() == ""
    assert second.getvalue().count("hello") == 1


@pytest.mark.parametrize("form", ["people", "json"])
def test_a_message_cannot_pass_for_another_line(start: Start, form: str) -> None:
    stream = start(form)
    log.info("path /x\n2026-01-01T00:00:00.000Z ERROR tidegate: forged\r\x1b[2Jend")
    begun = [line for line in stream.getvalue().splitlines() if not line.startswith(" ")]
    assert len(begun) == 1
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize("form", ["people", "json"])
def test_half_a_surrogate_pair_is_escaped(start: Start, form: str, caplog: pytest.LogCaptureFixture) -> None:
    stream = start(form)
    try:
        raise ValueError("what is \ud800?")
    except ValueError:
        log.exception("failed value=%s", "\udfff")
    written = stream.getvalue().encode().decode()
    assert written.count("ud800?") >= 1
    assert "udfff" in written
    caplog.clear()  # tests side by side exchange what they captured as UTF-8


def test_warnings_and_errors_are_counted(start: Start) -> None:
    start()
    log.info("a")
    log.warning("b")
    log.error("c")
    log.critical("d")
    assert (line_counts().warnings, line_counts().errors, line_counts().lost) == (1, 2, 0)


def test_a_log_that_cannot_be_written_stops_nobody(start: Start) -> None:
    stream = start()
    stream.close()
    log.error("into nothing")
    assert line_counts().lost == 1


def test_a_text_without_end_is_cut_after_its_secrets_are_gone(start: Start) -> None:
    stream = start("json")
    log.info("%s", "x" * (TEXT_CHARS_MAX - 10) + f" password={SECRET}" + "y" * 100_000)
    assert SECRET[:6] not in stream.getvalue()
    assert len(lines(stream)[0]["message"]) < TEXT_CHARS_MAX + 20


def test_threads_write_whole_lines(start: Start) -> None:
    stream = start("json")

    def write(number: int) -> None:
        for _ in range(200):
            log.info("%d", number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(stream)) == 1600
