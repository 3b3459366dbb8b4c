"""Failures: makes of an exception that came through Spark the few words that a person needs.

Spark wraps an error of ours in a Java stack, a Python stack and its own sentences. The last Python exception
in that text is the cause; our errors carry their hint there as a note.
"""

from __future__ import annotations

import re

from tidegate.errors import TidegateError

# Fits the console view and a log line; the full text is in the log once.
REASON_CHARS_MAX = 500

# The last line of a Python traceback: a dotted class name at the start of a line, then the message.
_PYTHON_CAUSE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|[a-z]\w*)): (.+)$", re.MULTILINE)
_OURS = re.compile(r"^tidegate\.errors\.\w+: (.+)$(?:\n^Hint: (.+)$)?", re.MULTILINE)


def short_reason(problem: BaseException) -> str:
    """Say in a sentence or two why a query or a file failed."""
    text = str(problem)
    if isinstance(problem, TidegateError):
        return _cut(f"{problem.message} {problem.hint}".strip())
    ours = list(_OURS.finditer(text))
    if ours:
        message, hint = ours[-1].groups()
        return _cut(f"{message} {hint or ''}".strip())
    if "Traceback (most recent call last)" in text:
        causes = list(_PYTHON_CAUSE.finditer(text.rpartition("Traceback (most recent call last)")[2]))
        if causes:
            return _cut(causes[0].group(0))
    # Py4J says first which call failed, then, after a colon, how Java puts it.
    lines = text.strip().splitlines() or [""]
    first = lines[1][2:] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
    name = type(problem).__name__
    return _cut(first if first.startswith("[") else f"{name}: {first}" if first else name)


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else text[: REASON_CHARS_MAX - 1] + "…"
