"""Choose the code of the walk. All engines give the same rows.

compiled    C made at the installation (_walk.pyx), where a compiler was
numpy       without a compiler
"""

from __future__ import annotations

from functools import cache

from walkeeper_wal.records.walk import Walk
from walkeeper_wal.records.walk_numpy import walk as slower

ENGINES = ("compiled", "numpy")
AUTO = "auto"


@cache
def engine(name: str = AUTO) -> Walk:
    """Return an engine by its name, or for `auto` the first of ENGINES that is there."""
    if name not in (AUTO, *ENGINES):
        raise ValueError(f"no engine {name!r}: {AUTO}, {', '.join(ENGINES)}")
    if name in (AUTO, "compiled"):
        try:
            from walkeeper_wal.records._walk import walk as compiled
        except ImportError:
            if name != AUTO:
                raise
        else:
            return compiled
    return slower
