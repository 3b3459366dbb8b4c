"""Folding: takes values for many keys, gives each key what it keeps with its values folded in, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import ValueInvalid
from tidegate.state.cells import GONE, Cells
from tidegate.state.vectors import Chosen, as_dtype, chosen_of, open_all, read_values, seen_of, write_values

# Sums and products at or above this may have gone round the end of 64 bits; the float beside them tells.
_BEYOND = 2.0**63


def fold_many(cells: Cells[Any], chosen: Chosen, values: Any, fold: Callable[[Any, Any], Any]) -> None:
    """Fold values in one by one; `fold` takes what is kept, or GONE, and a value."""
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    if isinstance(values, np.ndarray):
        listed = values.tolist()
    _check_count(cells, chosen, len(listed))
    once, places = _distinct(cells, chosen)
    kept = [GONE if one is None else one for one in open_all(cells, once, seen_of(cells, once), None)]
    for place, value in zip(places.tolist(), listed, strict=True):
        kept[place] = fold(kept[place], value)
    write_values(cells, once, kept)


def reduce_numbers(cells: Cells[Any], chosen: Chosen, values: Any, ufunc: np.ufunc) -> bool:
    """Fold numbers in with a ufunc, all keys at once; False, and nothing done, where 64 bits may not do."""
    given = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else np.asarray(values)
    numbers = as_dtype(cells, given, np.dtype(cells.serializer.dtype))
    _check_count(cells, chosen, len(numbers))
    if not len(numbers):
        return True
    once, places = _distinct(cells, chosen)
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    folded = ufunc.reduceat(numbers[order], starts)
    found = read_values(cells, once, None)
    kept = found.fill_null(0).to_numpy(zero_copy_only=False)
    is_there = found.is_valid().to_numpy(zero_copy_only=False)
    total = np.where(is_there, ufunc(kept, folded), folded)
    if numbers.dtype.kind == "i" and ufunc in (np.add, np.multiply):
        rough = ufunc.reduceat(numbers[order].astype(np.float64), starts)
        rough = np.where(is_there, ufunc(kept.astype(np.float64), rough), rough)
        if np.abs(rough).max() >= _BEYOND:
            return False
    write_values(cells, once, total)
    return True


def _distinct(cells: Cells[Any], chosen: Chosen) -> tuple[Chosen, npt.NDArray[np.int64]]:
    """Give each key of a call once, and for each value the place of its key among them."""
    if chosen.places is None:
        return chosen, np.arange(len(chosen.entries))
    unique, places = np.unique(chosen.places, return_inverse=True)
    entries = chosen_of(cells, chosen.many.keys).entries
    return Chosen(chosen.many, unique, [entries[at] for at in unique.tolist()]), places


def _check_count(cells: Cells[Any], chosen: Chosen, count: int) -> None:
    if count != len(chosen.entries):
        reason = f"{count} values for {len(chosen.entries)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
