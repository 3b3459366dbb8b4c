"""Failures: of a page of stacks, the sentence that helps."""

from __future__ import annotations

from tidegate.errors import TopicNotFound
from tidegate.pipeline.failures import REASON_CHARS_MAX, short_reason

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


def test_python_error_in_a_task_is_found() -> None:
    assert short_reason(RuntimeError(PYTHON)) == "ZeroDivisionError: division by zero"


def test_java_error_is_named() -> None:
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find: x." in short_reason(RuntimeError(JAVA))


def test_other_errors_give_kind_and_first_line_and_are_cut() -> None:
    assert short_reason(ValueError("one\ntwo")) == "ValueError: one"
    assert short_reason(ValueError()) == "ValueError"
    assert len(short_reason(ValueError("x" * 5000))) == REASON_CHARS_MAX
