"""The switch of the compiled fast path: it is on where it was built and not turned off.

    append_path()      the class for a safekeeper's appends, or None
    state()            "on", or "off" with the reason, for people

It is optional. Without a compiler at the installation, or with WALKEEPER_FAST_PATH=off, all
daemons work by the slow path alone. The variable is read once, when a daemon starts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkeeper_fastpath._fastpath import AppendPath

VARIABLE = "WALKEEPER_FAST_PATH"


def _loaded() -> tuple[type[AppendPath] | None, str]:
    """Return the class, and the reason why there is none."""
    if os.environ.get(VARIABLE, "on").lower() in ("off", "0", "no", "false"):
        return None, f"{VARIABLE} says so"
    try:
        from walkeeper_fastpath._fastpath import AppendPath
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError)
        return None, "it was not compiled" if is_absent else f"it cannot be loaded: {error}"
    return AppendPath, ""


_APPEND_PATH, _WHY_OFF = _loaded()


def append_path() -> type[AppendPath] | None:
    """Return the class of a safekeeper's fast path, or None if it is off."""
    return _APPEND_PATH


def is_on() -> bool:
    """Return True if the daemons of this process use the compiled fast path."""
    return _APPEND_PATH is not None


def state() -> str:
    """Return "on", or "off" with the reason."""
    return "on" if is_on() else f"off ({_WHY_OFF})"
