"""Choose the code of the walk: compiled by numba, or numpy alone. Both give the same rows."""

from __future__ import annotations

from functools import cache

from walkeeper_history.records.walk import Walk
from walkeeper_history.records.walk_numpy import walk as slower


@cache
def engine(name: str = "auto") -> Walk:
    """Return the engine `numba`, `numpy`, or for `auto` numba if it is installed."""
    if name not in ("auto", "numba", "numpy"):
        raise ValueError(f"no engine {name!r}: auto, numba or numpy")
    if name != "numpy":
        try:
            from walkeeper_history.records.walk_numba import walk
        except ModuleNotFoundError as missing:
            if name == "numba" or missing.name not in ("numba", "llvmlite"):
                raise
        else:
            return walk
    return slower
