"""Arguments of the doors: takes what a caller gave, gives a refusal in words of what is of another type.

Python checks no types. What is not refused here would fail later, in a worker, with words of Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.errors import DurationInvalid, StateInvalid
from tidegate.model.durations import parse_duration
from tidegate.pipeline.stateful.driver import path_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of what was given in place of something else, as an error shows it.
SHOWN_CHARS_MAX = 80

# Whether an argument may be so, and what it is.
Kind = tuple[Callable[[object], bool], str]
Kinds = Mapping[str, Kind]


def _is_count(found: object) -> bool:
    return found is None or (isinstance(found, int) and not isinstance(found, bool))


COUNT: Kind = (_is_count, "a whole number, 1 or more, or None")
FLAG: Kind = (lambda found: isinstance(found, bool), "True or False")
ROCKS: Kind = (lambda found: found is None or isinstance(found, RocksSettings), "tide.RocksSettings, or None")

COLUMN: Kind = (
    lambda found: isinstance(found, str),
    "the name of a column; add one for an expression (withColumn)",
)
COLUMN_OR_NONE: Kind = (
    lambda found: found is None or isinstance(found, str),
    "the name of a column, or None; add one for an expression (withColumn)",
)

FOLDERS = ("checkpoint", "savepoint", "local_dir", "dead_letters")


def check_kinds(name: str, given: Mapping[str, Any], kinds: Kinds) -> None:
    """Refuse arguments of another type than they must have, by their names."""
    for option, (is_right, wanted) in kinds.items():
        found = given[option]
        if not is_right(found):
            raise StateInvalid(operator=name, reason=f"{option} is {shown(found)}; it is {wanted}")
    for option in FOLDERS:
        path_text(name, option, given.get(option))


def check_frame(name: str, df: object) -> None:
    """Refuse what is no DataFrame of this driver."""
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        raise StateInvalid(operator=name, reason=f"it is given {shown(df)}; it takes a DataFrame of Spark")
    if not hasattr(df, "_jdf"):
        reason = "its DataFrame is one of Spark Connect; state needs a session of its own driver"
        raise StateInvalid(operator=name, reason=reason)


def alike(df: DataFrame, column: str) -> list[str]:
    """Return the columns that Spark takes for this name: it takes no notice of upper case, unless told to."""
    if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return [one for one in df.columns if one == column]
    return [one for one in df.columns if one.lower() == column.lower()]


def spelled(df: DataFrame, column: str) -> str:
    """Return the name of a column as the DataFrame spells it; one that is not there as it was given."""
    found = alike(df, column)
    return found[0] if len(found) == 1 else column


def length_us(name: str, option: str, given: object) -> int:
    """Return a length of time in microseconds; StateInvalid, with the option's name, for what is none."""
    if isinstance(given, timedelta):
        return _timedelta_us(name, option, given)
    if not isinstance(given, str):
        reason = f"its {option} is {shown(given)}; write it as '100 days' or 'PT5S', or give a timedelta"
        raise StateInvalid(operator=name, reason=reason)
    try:
        return parse_duration(given).us
    except DurationInvalid as problem:
        reason = f"its {option} is no duration. {problem.message}"
        raise StateInvalid(operator=name, reason=reason, hint=problem.hint) from problem


def _timedelta_us(name: str, option: str, given: timedelta) -> int:
    if given < timedelta():
        raise StateInvalid(operator=name, reason=f"its {option} is {given}, which is negative")
    return given // timedelta(microseconds=1)


def shown(found: object) -> str:
    """Return what was found as an error shows it: not all of it where it is long."""
    text = " ".join(repr(found).split())
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
