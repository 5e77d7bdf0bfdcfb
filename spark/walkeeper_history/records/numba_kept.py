"""`@kept`: a function compiled by numba, its code kept on disk where there is a place for it.

Contract: the same function with or without such a place. numba keeps compiled code in
NUMBA_CACHE_DIR, beside the source or in the user's cache directory. A user who can write to none of
them (walkeeper installed by root, run by an account without a home) compiles at each start, which
takes seconds, where numba alone would refuse. Imports numba: only for modules that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def kept(function: Function) -> Function:
    try:
        made: Any = njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        made = njit(nogil=True)(function)
    return cast(Function, made)
