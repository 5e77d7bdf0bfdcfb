"""`@compiled`: a loop over bytes, compiled by numba where it is installed.

Contract: without numba the same functions run interpreted, with the same results, a few hundred
times slower. Compiled code is kept in numba's cache (NUMBA_CACHE_DIR) and holds no interpreter
lock. Functions marked so take arrays and integers and give integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    from walkeeper_wal.records.numba_kept import kept
except ModuleNotFoundError as missing:
    if missing.name not in ("numba", "llvmlite"):
        raise

    def compiled(function: Function) -> Function:
        return function

else:
    compiled = kept
