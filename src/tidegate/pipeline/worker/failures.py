"""The reason why a query or a pipeline file failed, from an exception that came through Spark.

Spark wraps a Tidegate error in a Java stack, a Python stack and its own sentences, and often shows only the
outermost: "task failed while writing". The cause is further down the chain of Java's causes. The last Python
exception in those texts, else the innermost error that Spark names, is the cause; our errors carry their hint
there as a note.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError
from tidegate.model.names import shorten

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Fits the console view and a log line.
REASON_CHARS_MAX = 500
# Fits a screen or two of `pipeline show`; what is cut is stacks.
FULL_REASON_CHARS_MAX = 4_000
# Spark's chains have six links or fewer; a chain may be a ring.
CAUSES_MAX = 16

# The hint of a Tidegate error: on a line of its own below the reason.
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
# Of these classes only the causes are of interest.
_WRAPPERS = ("[STREAM_FAILED]", "[TASK_WRITE_FAILED]", "[FAILED_EXECUTE_UDF]", "Job aborted", "Writing job")


def short_reason(problem: BaseException) -> str:
    """Return in a sentence or two, on one line, why a query or a file failed."""
    reason, hint = _reason_and_hint(problem, _texts(problem))
    return _line(_joined(reason, hint))


def java_failure(query: StreamingQuery) -> Any:
    """Return the Java exception that ended a query; None where there is none.

    The exception of PySpark sometimes lacks the innermost cause.
    """
    found = query._jsq.exception()
    return found.get() if found.isDefined() else None


def full_reason(problem: BaseException, java: Any = None) -> str:
    """Return the reason on the first line, then the hint, then the texts of Spark and Python, without stacks.

    The line of the hint begins with HINT, and is there for Tidegate errors. `java` is the Java exception of
    the problem, where it is known.
    """
    texts = _texts(problem, java)
    reason, hint = _reason_and_hint(problem, texts)
    short = _line(reason) if not hint else f"{_line(reason)}\n{_line(HINT + hint)}"
    if isinstance(problem, TidegateError):
        return short
    parts = [short]
    if any("DELTA_METADATA_MISMATCH" in text or "DELTA_FAILED_TO_MERGE_FIELDS" in text for text in texts):
        parts.append(MISMATCH_HINT)
    for text in reversed(texts):
        plain = _without_stacks(text)
        if plain and not any(plain in other for other in parts):
            parts.append(plain)
    return shorten("\n\n".join(parts), FULL_REASON_CHARS_MAX)


def _reason_and_hint(problem: BaseException, texts: list[str]) -> tuple[str, str]:
    """Return the reason, and the hint where the error has one."""
    if isinstance(problem, TidegateError):
        return problem.message, problem.hint
    for text in reversed(texts):
        found = _of_python(text)
        if found:
            return found
    return _of_java(problem, texts), ""


def _joined(reason: str, hint: str) -> str:
    """Return both as consecutive sentences."""
    ended = reason.rstrip()
    if not hint:
        return ended
    return f"{ended} {hint}" if ended.endswith((".", "!", "?", "…")) else f"{ended}. {hint}"


def _of_java(problem: BaseException, texts: list[str]) -> str:
    """Return the reason of the most specific cause in the texts of Spark and Java."""
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
    # Py4J names the call that failed first, then, after a colon, the Java exception.
    lines = texts[0].strip().splitlines() or [""]
    first = lines[1][2:] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
    name = type(problem).__name__
    return first if first.startswith("[") else f"{name}: {first}" if first else name


def _columns_not_in_the_table(text: str) -> str:
    """Return names and types of the columns in which Delta's two lists differ, if any."""
    _, found, lists = text.partition("Table schema:")
    if "DELTA_METADATA_MISMATCH" not in text or not found:
        return ""
    table, _, rows = lists.partition("Data schema:")
    table_columns = set(_COLUMN.findall(table))
    return ", ".join(
        f"{name} {type_}" for name, type_ in _COLUMN.findall(rows) if (name, type_) not in table_columns
    )


def _of_python(text: str) -> tuple[str, str] | None:
    """Return the message and hint of a Tidegate error, or the last line of a traceback and its position.

    The position of a Tidegate error is of no use: its message names the place in the user's code.
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
    """Return the text of an exception, and then those of its Java causes, innermost last."""
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
    # The exception of a query has its text and its cause; only the cause has the Java exception.
    for one in (problem, getattr(problem, "_cause", None)):
        for name in ("java_exception", "_origin"):
            java = getattr(one, name, None)
            if java is not None:
                return java
    return None


def _without_stacks(text: str) -> str:
    lines: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(("=== Streaming Query ===", "JVM stacktrace:", "Driver stacktrace:")):
            break
        if not _STACK.match(line):
            lines.append(line.rstrip())
    return "\n".join(lines).strip()


def _line(text: str) -> str:
    return shorten(" ".join(text.split()), REASON_CHARS_MAX)
