"""Names of tables and columns that a lake's tables cannot have. Pure.

    NameRules(is_case_blind=…, has_paths=…)     the rules of one kind of lake
    refuse_names(table, added, rules)           before the first row of a table is written

Contract: a name that the lake would refuse, or read as another one, is refused with the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from walkeeper_replay.catalogs.catalog import Table
from walkeeper_wal.wal_errors import HistoryError

_NAME = re.compile(r"[\w$-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class NameRules:
    """The rules of one kind of lake for the names of columns."""

    is_case_blind: bool = False
    """Two names that differ by case alone are one name."""
    has_paths: bool = False
    """A dot leads into a column of several parts."""


def refuse_names(table: Table, added: Collection[str], rules: NameRules) -> None:
    """Raise HistoryError for a name that a lake cannot take; the mirror adds columns `added`."""
    if not (_NAME.fullmatch(table.schema) and _NAME.fullmatch(table.name)):
        raise HistoryError(
            f"{table.shown}: the lake's table would have that name, which has characters that "
            "a lake may not take: name other tables (--table), or use --mode append"
        )
    names = [attribute.name for attribute in table.columns]
    taken = [name for name in names if _as_read(name, rules) in added]
    if taken:
        raise HistoryError(
            f"{table.shown} has columns {', '.join(sorted(taken))}, which --mode scd2 adds: "
            "use --mode mirror or append"
        )
    places: dict[str, str] = {}
    for name in names:
        if (other := places.setdefault(_as_read(name, rules), name)) != name:
            raise HistoryError(
                f"{table.shown}: columns {other} and {name} differ by case alone, and in this lake "
                "they are one: use --mode append"
            )
    dotted = [name for name in names if "." in name]
    if rules.has_paths and dotted:
        raise HistoryError(
            f"{table.shown}: column {dotted[0]} has a dot, which this lake reads as a path: "
            "use --mode append"
        )


def _as_read(name: str, rules: NameRules) -> str:
    return name.lower() if rules.is_case_blind else name
