"""Maintenance of a lake's table: the retention, and the choice of the files that it merges.

    merge_target([9000] * 40, largest_bytes=128 << 20) -> 360000

A table that gets a commit each second has thousands of small files soon, and each MERGE leaves
the files that it replaced. The lakes' own words for the remedy are table maintenance. The modules
delta_maintenance and iceberg_maintenance perform it. Contract: maintenance changes no row, and
removes no file that a version within the retention has. This module reads no clock and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FILES_MIN = 32
"""So many small files are worth a merge."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a table keeps the files that were replaced, and its older versions."""

    seconds: int
    is_asked: bool = True
    """False for the default. The table's own properties come before that one."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of the maintenance of one table."""

    removed: int = 0
    """Files that no version within the retention has."""
    merged: int = 0
    made: int = 0
    """The files into which the merged ones went."""
    expired: int = 0
    """Versions that are not there any more."""
    remark: str | None = None
    """Advice to the operator, or None."""


def merge_target(sizes: Sequence[int], largest_bytes: int) -> int | None:
    """Return the size below which all files are to be merged, or None if there is no need.

    The largest of these files is at most as large as the others together. So each merge at least
    doubles the size of a file, and a row is written anew a few times at most. Files of
    `largest_bytes` or more stay as they are.
    """
    total, target = 0, None
    for count, size in enumerate(sorted(each for each in sizes if each < largest_bytes), 1):
        is_worth_it = count >= FILES_MIN and size <= total
        total += size
        if is_worth_it:
            target = min(total, largest_bytes)
    return target
