"""The contract of a fuzz target, and what it may find.

    target.run(data)      returns, or raises: then `data` shows a defect of the shipping code

A target lets nothing through but what the code under it documents, so a target that raises is a
finding whatever the exception is. `Broken` says which promise was not kept; any other exception is
one that a peer or a file should not be able to cause.

`repair` is what gets mutations behind a checksum: it makes lengths and CRCs right again. `alter`
changes the input as what it is (a frame, a record, an event) and not as bytes. Both are pure
functions of their arguments, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

Mutation: TypeAlias = Callable[[bytes, Random], bytes]


class Broken(Exception):
    """The code under a target did something that its contract excludes."""


def require(holds: bool, what: str, *facts: object) -> None:
    """Require a fact as assert does, but apart from the assertions of the shipping code.

    `what.format(*facts)` is made only then: to show a message costs more than to parse it.
    """
    if not holds:
        raise Broken(what.format(*facts))


@dataclass(frozen=True, slots=True)
class Target:
    """`bytes_max` bounds an input; `seeds` are valid ones, made by code."""

    name: str
    about: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    bytes_max: int = 4096
    alter: Mutation | None = None
    repair: Mutation | None = None

    def short_seeds(self) -> list[bytes]:
        """Return the seeds that are no longer than an input may be."""
        return [data for data in self.seeds() if len(data) <= self.bytes_max]
