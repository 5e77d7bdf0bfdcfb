"""The engines of the walk that this installation has."""

from __future__ import annotations

from importlib.util import find_spec

from walkeeper_wal.records.engines import ENGINES


def engines_here() -> tuple[str, ...]:
    """Return all engines, without the compiled one where no compiler was at the installation."""
    built = find_spec("walkeeper_wal.records._walk") is not None
    return ENGINES if built else ENGINES[1:]
