"""`@kept`: a function compiled by numba, its code kept on disk if there is a place for it.

Contract: the function is the same with or without such a place. numba keeps compiled code in
NUMBA_CACHE_DIR, beside the source or in the user's cache directory. A user may be unable to write
to any of them (walkeeper installed by root, run by an account without a home). Then each start
compiles, which takes seconds, while numba alone would refuse. Imports numba: only for modules that
need it.

The logger COMPILING tells a user who waits for the compiler the reason (info, once in a process).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import event

from walkeeper_wal.records.compiling import COMPILING

Function = TypeVar("Function", bound=Callable[..., Any])


class _Teller(event.Listener):
    """Report the first of our functions that numba compiles; it may find others in its cache."""

    def __init__(self) -> None:
        self._ours = set[int]()
        self._has_told = False

    def add(self, made: Any) -> None:
        self._ours.add(id(made))

    def on_start(self, event: Any) -> None:
        made = event.data["dispatcher"]
        if self._has_told or id(made) not in self._ours:
            return
        self._has_told = True
        kept_in = made.stats.cache_path
        how_often = "in each run: it cannot be kept; name a directory in NUMBA_CACHE_DIR"
        if kept_in:
            how_often = f"once: it is kept in {kept_in}"
        logging.getLogger(COMPILING).info("compiling, up to half a minute, %s", how_often)

    def on_end(self, event: Any) -> None: ...


_teller = _Teller()
event.register("numba:compile", _teller)  # type: ignore[no-untyped-call]


def kept(function: Function) -> Function:
    try:
        made: Any = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no directory for its cache; without one, another error comes again
        made = njit(nogil=True)(function)
    _teller.add(made)
    return cast(Function, made)
