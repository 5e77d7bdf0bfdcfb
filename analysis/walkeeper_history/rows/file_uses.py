"""When the files of relations were made: a number of a file may be used again by another relation.

    uses = FileUses(); uses.note(relation, commit_lsn, time); uses.around(relation, commit_lsn)

Contract: only committed transactions in the WAL that was read are known. Pure.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Relation = tuple[int, int, int]


class MadeFile(NamedTuple):
    """The commit that made a file: the end of its record, and PostgreSQL's microseconds."""

    commit_lsn: int
    time: int


@dataclass(slots=True)
class FileUses:
    """See the module."""

    _made: dict[Relation, list[MadeFile]] = field(default_factory=dict)

    def note(self, relations: Iterable[Relation], made: MadeFile) -> None:
        for relation in relations:
            insort(self._made.setdefault(relation, []), made)

    def around(
        self, relation: Relation, commit_lsn: int
    ) -> tuple[MadeFile | None, MadeFile | None]:
        """Return when a file was made up to a commit, and when one of its number after it."""
        made = self._made.get(relation, [])
        place = bisect_right(made, commit_lsn, key=lambda each: each.commit_lsn)
        return made[place - 1] if place else None, made[place] if place < len(made) else None
