"""The constants of a statement's comparisons: their types as DuckDB sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.query.bounds import Bound

TIME_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "VARCHAR"})


def constant_types(cursor: Any, bounds: list[Bound], params: Sequence[Any]) -> dict[str, str]:
    """Give DuckDB's type of each constant."""
    texts = list(dict.fromkeys(c.sql for bound in bounds for c in (*bound.constants, *bound.peers)))
    sql = f"SELECT {', '.join(f'typeof({text})' for text in texts)}"
    return dict(zip(texts, cursor.execute(sql, used_params(cursor, sql, params)).fetchall()[0], strict=True))


def used_params(cursor: Any, sql: str, params: Sequence[Any]) -> dict[str, Any]:
    """Give the parameters that a text uses, by number."""
    names: set[str] = cursor.extract_statements(sql)[0].named_parameters
    return {name: params[int(name) - 1] for name in names}


def is_whole(kind: str) -> bool:
    """Tell whether a type of DuckDB holds whole numbers and nothing else."""
    return kind.endswith("INT") or kind == "INTEGER"


def alike(kinds: set[str]) -> bool:
    """Tell whether one type for all of them changes none of the comparisons."""
    return len(kinds) <= 1 or all(map(is_whole, kinds)) or kinds <= TIME_TYPES - {"VARCHAR"}
