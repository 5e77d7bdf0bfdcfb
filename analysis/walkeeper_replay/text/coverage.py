"""The coverage of rows: a text for people, and the facts by which programs decide. Pure.

    AS_OIDS = reason("names … as OIDs", has_values=True)
    together([first, second])            "first; second", or COMPLETE without a reason

A Coverage is the text of the column `coverage`. Programs take rows by its facts, and never by its
words: exit codes and mirrors by `has_all`, and `undo` by `has_values`.
"""

from __future__ import annotations

from collections.abc import Iterable

_COMPLETE = "complete"


class Coverage(str):
    """A text; `reasons` are its parts, `has_all` is True if the rows are SELECT's all the same.

    `has_values` is True if a server reads each value back as the same one, whatever its text.
    """

    reasons: tuple[str, ...] = ()
    has_all: bool = True
    has_values: bool = True


def reason(text: str, *, has_all: bool = False, has_values: bool = False) -> Coverage:
    """Return the coverage of rows that lack something, or with has_values show it otherwise."""
    made = Coverage(text)
    made.reasons, made.has_all, made.has_values = (text,), has_all, has_all or has_values
    return made


def together(coverages: Iterable[Coverage]) -> Coverage:
    """Return the coverage of rows with all these reasons, each of them once, in their order."""
    found = list(coverages)
    reasons = tuple(dict.fromkeys(each for coverage in found for each in coverage.reasons))
    made = Coverage("; ".join(reasons) or _COMPLETE)
    made.reasons, made.has_all = reasons, all(coverage.has_all for coverage in found)
    made.has_values = all(coverage.has_values for coverage in found)
    return made


COMPLETE = together(())
