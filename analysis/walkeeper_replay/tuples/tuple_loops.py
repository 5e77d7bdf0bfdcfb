"""The compiled loops over tuples (_tuples.pyx), or an error that says why there are none."""

from __future__ import annotations

from walkeeper_wal.wal_errors import NotCompiled

try:
    from walkeeper_replay.tuples import _tuples as loops
except ImportError as error:
    raise NotCompiled("reading tuples", str(error)) from error

__all__ = ["loops"]
