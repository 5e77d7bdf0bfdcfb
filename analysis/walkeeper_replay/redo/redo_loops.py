"""The compiled loops of redo (_redo.pyx), or an error that says why there are none.

    loops.apply(…)

A wheel has them. An installation from source makes them where a C compiler is.
"""

from __future__ import annotations

from walkeeper_wal.wal_errors import NotCompiled

try:
    from walkeeper_replay.redo import _redo as loops
except ImportError as error:
    raise NotCompiled("the redo of pages", str(error)) from error

__all__ = ["loops"]
