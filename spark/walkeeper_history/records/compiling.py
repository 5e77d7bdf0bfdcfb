"""Where it is said that a compiler is at work: `logging.getLogger(COMPILING)`, as info."""

from __future__ import annotations

COMPILING = "walkeeper.compiling"
