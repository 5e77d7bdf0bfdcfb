"""The logger that reports a compiler at work: `logging.getLogger(COMPILING)`, as info."""

from __future__ import annotations

COMPILING = "walkeeper.compiling"
