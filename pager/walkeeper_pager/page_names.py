"""Name a page, and the reasons why it cannot be given. Pure.

    Place.parse("1663/5/16384"), Place.parse("base/5/16384_init")

Every error is a PageError with its `kind`, by which programs decide (docs/pager.md), and a text
that says what to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from walkeeper_wal.wal_errors import HistoryError

FORKS = {"main": 0, "fsm": 1, "vm": 2, "init": 3}
DEFAULT_TABLESPACE, GLOBAL_TABLESPACE = 1663, 1664
FORKS_KEPT = (0, 3)  # the forks that WAL describes in full
BLOCK_MAX = (1 << 32) - 2
_N = "[0-9]{1,10}"
_NUMBERS = re.compile(f"({_N})/({_N})/({_N})")
_FILE = re.compile(
    f"(?:base/(?P<base>{_N})|(?P<globally>global)"
    f"|pg_tblspc/(?P<space>{_N})/PG_[^/]+/(?P<inner>{_N}))"
    f"/(?P<node>{_N})(?:_(?P<fork>fsm|vm|init))?"
)


class PageError(HistoryError):
    """A page cannot be given."""

    kind: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500


class NotAPlace(PageError):
    """The request names no relation, fork, block or LSN."""

    kind, http_status = "usage", 400


class NoSuchPage(PageError):
    """The relation, or this block of it, is not there as of that LSN."""

    kind, http_status = "no_such_page", 404


class BeforeHorizon(PageError):
    """The LSN is older than the history that is kept."""

    kind, http_status = "before_horizon", 410


class NotReplayed(PageError):
    """A record that this redo does not know has changed the page, or a record did not fit it.

    It may also be damaged in the base backup, or of an unlogged relation."""

    kind, http_status = "not_replayed", 501


class NotApplied(PageError):
    """The LSN is later than what has been applied, and the time to wait is over."""

    kind, http_status = "not_applied", 504


class Busy(PageError):
    """Too many requests wait for their LSN already."""

    kind, http_status = "busy", 503


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A fork of a relation, as WAL names it."""

    tablespace: int
    database: int
    relfilenode: int
    fork: int = 0

    @classmethod
    def parse(cls, text: str, fork: str | None = None) -> Place:
        """Return the place of `tablespace/database/relfilenode`, or of pg_relation_filepath()'s
        text."""
        if fork is not None and fork not in FORKS:
            raise NotAPlace(f"{fork!r} is not a fork: {', '.join(FORKS)}")
        if found := _NUMBERS.fullmatch(text):
            numbers, named = (int(found[1]), int(found[2]), int(found[3])), None
        elif found := _FILE.fullmatch(text):
            named = found["fork"]
            if found["globally"]:
                numbers = (GLOBAL_TABLESPACE, 0, int(found["node"]))
            elif found["base"]:
                numbers = (DEFAULT_TABLESPACE, int(found["base"]), int(found["node"]))
            else:
                numbers = (int(found["space"]), int(found["inner"]), int(found["node"]))
        else:
            raise NotAPlace(
                f"{text!r} is not a relation's file: tablespace/database/relfilenode, or what "
                "pg_relation_filepath() prints, such as base/5/16384"
            )
        if max(numbers) >= 1 << 32:
            raise NotAPlace(f"{text!r}: numbers are below 2^32")
        return cls(*numbers, FORKS[fork or named or "main"])

    def __str__(self) -> str:
        shown = f"{self.tablespace}/{self.database}/{self.relfilenode}"
        return shown if not self.fork else f"{shown} ({list(FORKS)[self.fork]})"


def check_place(place: Place, block: int) -> None:
    """Raise NotAPlace or NotReplayed if there is no LSN at which the page can be given."""
    if place.fork not in FORKS_KEPT:
        raise NotReplayed(
            f"{place}: WAL does not describe this fork in full; name the fork main or init"
        )
    if not 0 <= block <= BLOCK_MAX:
        raise NotAPlace(f"{block} is not a block's number")
