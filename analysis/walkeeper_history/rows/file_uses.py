"""When the files of relations were made: another relation may use a file's number again later.

    uses = FileUses(); uses.note(relations, MadeFile(commit_lsn, time))
    uses.around(relation, commit_lsn)

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
    """The commits that made each file."""

    _made: dict[Relation, list[MadeFile]] = field(default_factory=dict)

    def note(self, relations: Iterable[Relation], made: MadeFile) -> None:
        for relation in relations:
            insort(self._made.setdefault(relation, []), made)

    def around(
        self, relation: Relation, commit_lsn: int
    ) -> tuple[MadeFile | None, MadeFile | None]:
        """Return the last commit up to `commit_lsn` that made this file, and the next one after it.

        Each is None if there is none in the WAL that was read.
        """
        made = self._made.get(relation, [])
        place = bisect_right(made, commit_lsn, key=lambda each: each.commit_lsn)
        return made[place - 1] if place else None, made[place] if place < len(made) else None
