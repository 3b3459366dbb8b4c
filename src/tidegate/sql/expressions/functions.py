"""The functions of live queries by name, with the number of their arguments and their compilers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from tidegate.errors import SqlUnsupported
from tidegate.sql.expressions import functions_json, functions_numbers, functions_text, functions_times
from tidegate.sql.expressions.comparisons import case, coalesce, extreme, null_if
from tidegate.sql.expressions.types import NULL, CompiledExpr, constant, refuse

Build = Callable[[Sequence[CompiledExpr]], CompiledExpr]

PLAIN_HINT = "Ask for it in a plain query (POST /api/v1/sql), or calculate it continuously in a pipeline."

_AGGREGATES = """
    any_value approx_count_distinct approx_quantile arg_max arg_min array_agg avg bit_and bit_or bit_xor
    bool_and bool_or corr count count_if count_star covar_pop covar_samp entropy favg first fsum geomean
    group_concat histogram kurtosis last list listagg mad max max_by mean median min min_by mode product
    quantile quantile_cont quantile_disc skewness stddev stddev_pop stddev_samp string_agg sum sumkahan
    var_pop var_samp variance row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value
    last_value nth_value
"""
_NOW = """
    now current_timestamp get_current_timestamp transaction_timestamp current_date today current_time
    get_current_time localtimestamp localtime current_localtimestamp current_localtime age
"""
_VOLATILE = "random uuid gen_random_uuid uuidv4 uuidv7 setseed nextval currval"


def _choices() -> dict[str, tuple[int, int, Build]]:
    return {
        "coalesce": (1, 64, coalesce),
        "ifnull": (2, 2, coalesce),
        "nullif": (2, 2, lambda args: null_if(args[0], args[1])),
        "greatest": (1, 64, lambda args: extreme(args, greatest=True)),
        "least": (1, 64, lambda args: extreme(args, greatest=False)),
        "if": (3, 3, lambda args: case([args[0]], [args[1]], args[2])),
    }


@lru_cache(maxsize=1)
def every_function() -> Mapping[str, tuple[int, int, Build]]:
    """Return every function: the fewest and the most arguments that it takes, and its compiler."""
    return {
        **_choices(),
        **functions_text.FUNCTIONS,
        **functions_numbers.FUNCTIONS,
        **functions_times.FUNCTIONS,
        **functions_json.FUNCTIONS,
    }


def build_call(name: str, args: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return the expression of `name(args)`, or raise SqlUnsupported with the functions that there are."""
    word = name.lower()
    known = every_function().get(word)
    if known is None:
        raise unknown_function(word)
    fewest, most, build = known
    if not fewest <= len(args) <= most:
        counts = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise refuse(f"{word}() takes {counts} arguments in a live query, not {len(args)}.")
    return build(args)


def unknown_function(word: str) -> SqlUnsupported:
    """Return the error for a function that live queries do not have."""
    if word in _AGGREGATES.split():
        return refuse(
            f"A live query looks at one row at a time, so it has no aggregate {word}().", PLAIN_HINT
        )
    if word in _NOW.split():
        reason = f"{word}() would change while the query lives, and rows would come and go without a change."
        return refuse(reason, "Give the moment as a parameter: WHERE at >= ?")
    if word in _VOLATILE.split():
        return refuse(f"{word}() gives another value each time, so it cannot be used in a live query.")
    near = get_close_matches(word, every_function(), n=3)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    listed = "docs/reference/live-filters.md lists the functions; a plain query has all of DuckDB's."
    return refuse(f"A live query has no function {word}().{guess}", listed)


def null_expr() -> CompiledExpr:
    """Return NULL as written."""
    return constant(None, NULL)
