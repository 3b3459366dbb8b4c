"""Failures: makes of an exception that came through Spark the words that a person needs.

Spark wraps an error of ours in a Java stack, a Python stack and its own sentences, and often tells only the
outermost: "task failed while writing". The cause is further down the chain of Java's causes. The last Python
exception in those texts, else the innermost error that Spark names, is the cause; our errors carry their hint
there as a note.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Fits the console view and a log line.
REASON_CHARS_MAX = 500
# Fits a screen or two of `pipeline show`; what is cut is stacks.
FULL_REASON_CHARS_MAX = 4_000
# Spark's chains have six links or fewer; a chain may be a ring.
CAUSES_MAX = 16

# What to do about an error of ours: on a line of its own below the reason.
HINT = "Hint: "
TRACEBACK = "Traceback (most recent call last)"
MISMATCH_HINT = (
    "Give the rows the table's columns and types, or add "
    '.option("mergeSchema", "true") to the writeStream to let new columns in, or write to another table.'
)

# The last line of a Python traceback: a dotted class name at the start of a line, then the message.
_PYTHON_CAUSE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|[a-z]\w*))(?:: (.+))?$", re.MULTILINE)
_PYTHON_PLACE = re.compile(r'^\s+File "([^"]+)", line (\d+)', re.MULTILINE)
_OURS = re.compile(r"^tidegate\.errors(?:\.\w+)+: (.+)$(?:\n^Hint: (.+)$)?", re.MULTILINE)
_CONDITION = re.compile(r"^(?:[\w.$]+: )?(\[[A-Z][A-Z0-9_.]+\] .*)", re.DOTALL)
_COLUMN = re.compile(r"^-- (.+?): (\w[^\n]*?) \(nullable", re.MULTILINE)
# A frame, or what Spark adds below its own sentence.
_STACK = re.compile(
    r"^\s*(?:at [\w.$/]+\.[\w$<]|\.\.\. \d+ more|=== Streaming Query ===|JVM stacktrace:|Driver stac)"
)
# Of these classes only the causes say something.
_WRAPPERS = ("[STREAM_FAILED]", "[TASK_WRITE_FAILED]", "[FAILED_EXECUTE_UDF]", "Job aborted", "Writing job")


def short_reason(problem: BaseException) -> str:
    """Return in a sentence or two, on one line, why a query or a file failed."""
    reason, hint = _reason_and_hint(problem, _texts(problem))
    return _line(_joined(reason, hint))


def java_failure(query: StreamingQuery) -> Any:
    """Return the Java exception that ended a query; None where there is none.

    What PySpark makes of it has lost the innermost cause at times.
    """
    found = query._jsq.exception()
    return found.get() if found.isDefined() else None


def full_reason(problem: BaseException, java: Any = None) -> str:
    """Return why on the first line, on the next what to do, then what Spark and Python told, without stacks.

    The line with what to do begins with HINT, and is there for errors of ours. `java` is the Java half of the
    problem, where it is at hand.
    """
    texts = _texts(problem, java)
    reason, hint = _reason_and_hint(problem, texts)
    short = _line(reason) if not hint else f"{_line(reason)}\n{_line(HINT + hint)}"
    if isinstance(problem, TidegateError):
        return short
    told = [short]
    if any("DELTA_METADATA_MISMATCH" in text or "DELTA_FAILED_TO_MERGE_FIELDS" in text for text in texts):
        told.append(MISMATCH_HINT)
    for text in reversed(texts):
        plain = _without_stacks(text)
        if plain and not any(plain in other for other in told):
            told.append(plain)
    return _cut("\n\n".join(told), FULL_REASON_CHARS_MAX)


def _reason_and_hint(problem: BaseException, texts: list[str]) -> tuple[str, str]:
    """Return the reason, and what to do where the error says it."""
    if isinstance(problem, TidegateError):
        return problem.message, problem.hint
    for text in reversed(texts):
        found = _of_python(text)
        if found:
            return found
    return _of_java(problem, texts), ""


def _joined(reason: str, hint: str) -> str:
    """Return both as sentences that follow each other."""
    ended = reason.rstrip()
    if not hint:
        return ended
    return f"{ended} {hint}" if ended.endswith((".", "!", "?", "…")) else f"{ended}. {hint}"


def _of_java(problem: BaseException, texts: list[str]) -> str:
    """Return what Spark and Java say, in the words of the cause that says most."""
    columns = next(filter(None, map(_columns_not_in_the_table, texts)), "")
    if columns:
        return f"[DELTA_METADATA_MISMATCH] The table has not these columns of the rows: {columns}."
    named = [match.group(1) for text in texts if (match := _CONDITION.match(text.strip()))]
    telling = [text for text in named if not text.startswith(_WRAPPERS)]
    if len(telling) > 1 and telling[-2].startswith("[DELTA_FAILED_TO_MERGE_FIELDS]"):
        # The inner one names the types, the outer one the column.
        return f"{_without_stacks(telling[-2])}: {_without_stacks(telling[-1])}"
    if telling or named:
        return _without_stacks((telling or named)[-1])
    # Py4J says first which call failed, then, after a colon, how Java puts it.
    lines = texts[0].strip().splitlines() or [""]
    first = lines[1][2:] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
    name = type(problem).__name__
    return first if first.startswith("[") else f"{name}: {first}" if first else name


def _columns_not_in_the_table(text: str) -> str:
    """Return name and type of what Delta's two lists of columns do not share; nothing where it lists none."""
    _, found, lists = text.partition("Table schema:")
    if "DELTA_METADATA_MISMATCH" not in text or not found:
        return ""
    table, _, rows = lists.partition("Data schema:")
    kept = set(_COLUMN.findall(table))
    return ", ".join(f"{name} {type_}" for name, type_ in _COLUMN.findall(rows) if (name, type_) not in kept)


def _of_python(text: str) -> tuple[str, str] | None:
    """Return the message and hint of our own error, or the last line of a traceback and where it was raised.

    Where an error of ours was raised is no use to anybody: it says itself where the user's code failed.
    """
    ours = list(_OURS.finditer(text))
    if ours:
        message, hint = ours[-1].groups()
        return message, hint or ""
    if TRACEBACK not in text:
        return None
    trace = text.rpartition(TRACEBACK)[2]
    cause = _PYTHON_CAUSE.search(trace)
    if cause is None:
        return None
    places = [(file, line) for file, line in _PYTHON_PLACE.findall(trace[: cause.start()]) if file[0] != "<"]
    where = [(file, line) for file, line in places if "/pyspark/" not in file] or places
    return (f"{cause.group(0)} ({where[-1][0]}, line {where[-1][1]})" if where else cause.group(0)), ""


def _texts(problem: BaseException, java: Any = None) -> list[str]:
    """Return what an exception says, and then what each of its Java causes says, innermost last."""
    texts = [str(problem)]
    cause = java or _java_of(problem)
    for _ in range(CAUSES_MAX):
        if cause is None:
            break
        message = cause.getMessage()
        if message and message not in texts:
            texts.append(str(message))
        cause = cause.getCause()
    return texts


def _java_of(problem: BaseException) -> Any:
    """Return the Java exception behind one of Spark's or Py4J's; None where there is none."""
    # The exception of a query is made of its text and its cause; only the cause knows its Java half.
    for one in (problem, getattr(problem, "_cause", None)):
        for name in ("java_exception", "_origin"):
            java = getattr(one, name, None)
            if java is not None:
                return java
    return None


def _without_stacks(text: str) -> str:
    kept: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(("=== Streaming Query ===", "JVM stacktrace:", "Driver stacktrace:")):
            break
        if not _STACK.match(line):
            kept.append(line.rstrip())
    return "\n".join(kept).strip()


def _line(text: str) -> str:
    return _cut(" ".join(text.split()), REASON_CHARS_MAX)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
