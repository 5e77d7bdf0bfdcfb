"""Counts in a message for people: `1 commit waits`, `3 commits wait`. Pure."""

from __future__ import annotations


def counted(count: int, one: str, many: str) -> str:
    """Return the count with the words for one thing, or else with those for several."""
    return f"{count} {one if count == 1 else many}"
