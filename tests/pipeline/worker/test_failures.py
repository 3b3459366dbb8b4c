"""Failures: of a page of stacks, the sentence that helps."""

from __future__ import annotations

import traceback

from tidegate.errors import RowFailed, TidegateError, TopicNotFound
from tidegate.pipeline.topic.client import with_hint_note
from tidegate.pipeline.worker.failures import (
    FULL_REASON_CHARS_MAX,
    REASON_CHARS_MAX,
    full_reason,
    short_reason,
)

OURS = """[STREAM_FAILED] Query [id = x] terminated with exception: Failed when source did initialOffset:
Traceback (most recent call last):
  File "source.py", line 132, in initialOffset
    return self._planner.first()
tidegate.errors.TopicNotFound: There is no topic 'a.b'.
Hint: Create it with 'tidegate topic create a.b'.
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = x]
"""

PYTHON = """Job aborted due to stage failure: Traceback (most recent call last):
  File "events.py", line 5, in twice
    return 2 / n
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner
"""

JAVA = """An error occurred while calling o79.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find: x.
\tat org.apache.spark
"""


def test_our_own_error_keeps_message_and_hint() -> None:
    reason = short_reason(RuntimeError(OURS))
    assert reason == "There is no topic 'a.b'. Create it with 'tidegate topic create a.b'."
    assert short_reason(TopicNotFound(topic="a.b")).startswith("There is no topic 'a.b'. Create it with")


def raised(error: TidegateError) -> str:
    """Return what Spark tells of an error of ours that came from another in a worker."""
    try:
        try:
            raise ZeroDivisionError("division by zero")
        except ZeroDivisionError as problem:
            raise with_hint_note(error) from problem
    except TidegateError:
        return f"Job aborted due to stage failure: {traceback.format_exc()}\n\tat org.apache.spark.api.X"


def test_row_that_failed_is_told_with_the_place_in_the_users_file_alone() -> None:
    reason = "ZeroDivisionError: division by zero (/home/ada/visits.py:12 in process); the row is {}"
    error = RowFailed(operator="visits", key="ada", reason=reason)
    full = full_reason(RuntimeError(raised(error))).splitlines()
    assert full[0] == f"Operator 'visits' failed on key ada: {reason}"
    assert full[1] == f"Hint: {error.hint}"


def test_reason_and_hint_are_two_sentences_or_two_lines() -> None:
    error = RowFailed(operator="visits", key="ada", reason="it broke", hint="Mend it.")
    for problem in (error, RuntimeError(raised(error))):
        assert short_reason(problem) == "Operator 'visits' failed on key ada: it broke. Mend it."
        told = full_reason(problem).splitlines()[:2]
        assert told == ["Operator 'visits' failed on key ada: it broke", "Hint: Mend it."]


def test_python_error_in_a_task_is_found() -> None:
    assert short_reason(RuntimeError(PYTHON)) == "ZeroDivisionError: division by zero (events.py, line 5)"


def test_java_error_is_named() -> None:
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find: x." in short_reason(RuntimeError(JAVA))


def test_other_errors_give_kind_and_first_line_and_are_cut() -> None:
    assert short_reason(ValueError("one\ntwo")) == "ValueError: one"
    assert short_reason(ValueError()) == "ValueError"
    assert len(short_reason(ValueError("x" * 5000))) == REASON_CHARS_MAX


class JavaCause:
    """An exception of Java as Py4J gives it."""

    def __init__(self, message: str | None, cause: JavaCause | None = None) -> None:
        self._message, self._next = message, cause

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> JavaCause | None:
        return self._next


class FromSpark(Exception):
    """An exception with a Java half."""

    def __init__(self, text: str, origin: JavaCause) -> None:
        super().__init__(text)
        self._origin = origin


WRAPPED = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/events. SQLSTATE: 58030"


def test_cause_is_found_down_the_chain_of_java() -> None:
    python = FromSpark(WRAPPED, JavaCause(WRAPPED, JavaCause(None, JavaCause(PYTHON))))
    assert short_reason(python) == "ZeroDivisionError: division by zero (events.py, line 5)"
    ours = FromSpark(WRAPPED, JavaCause("Job aborted", JavaCause(OURS)))
    assert short_reason(ours).startswith("There is no topic 'a.b'.")
    spark = FromSpark(WRAPPED, JavaCause(WRAPPED, JavaCause("[CAST_INVALID_INPUT] The value 'a' is no INT.")))
    assert short_reason(spark) == "[CAST_INVALID_INPUT] The value 'a' is no INT."


def test_ring_of_causes_ends() -> None:
    ring = JavaCause(WRAPPED)
    ring._next = ring
    assert short_reason(FromSpark("x", ring)) == WRAPPED


def test_full_reason_begins_with_the_short_one_and_is_bounded_and_without_stacks() -> None:
    problem = FromSpark(WRAPPED, JavaCause(PYTHON + "\nmore " * 5000))
    full = full_reason(problem)
    assert full.splitlines()[0] == short_reason(problem)
    assert len(full) == FULL_REASON_CHARS_MAX
    assert "\tat " not in full
    assert 'File "events.py", line 5' in full
