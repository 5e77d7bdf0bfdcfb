"""Names of objects for regclass and its like, each kind made when it is first wanted. Pure.

    names.name(REGPROC, 1242) -> 'boolin', or None if the catalogs at hand do not decide it
    names.for_sql()           -> the same objects in texts that a server reads whatever its path

Contract: an object that whole catalogs do not have is its number, as the server prints it. A number
that catalogs in parts do not have is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Shown = Mapping[int, str | None]
"""Names by OID. The name is None if the catalogs do not decide it."""


@dataclass(frozen=True, slots=True)
class NamesOfKind:
    """The objects that one type names."""

    shown: Shown
    """As SELECT prints them on the default search path."""
    for_sql: Shown
    """With their schemas. The number stands for a name that input takes for none, or several."""
    are_all: bool
    """True if the catalogs have all objects of this kind."""


@dataclass(slots=True)
class ObjectNames:
    """The names of objects by type and OID. Pickling makes all names."""

    makers: dict[int, Callable[[], NamesOfKind]] = field(default_factory=dict)
    """By type: a function that makes its names."""
    is_for_sql: bool = False
    _made: dict[int, NamesOfKind] = field(default_factory=dict)

    def name(self, kind: int, oid: int) -> str | None:
        """Return an object's name, its number if there is no such object, or None."""
        if kind not in self._made:
            if kind not in self.makers:
                return None
            self._made[kind] = self.makers[kind]()
        found = self._made[kind]
        names = found.for_sql if self.is_for_sql else found.shown
        return names.get(oid) if oid in names or not found.are_all else str(oid)

    def for_sql(self) -> ObjectNames:
        """Return the names as SQL has them."""
        return ObjectNames(self.makers, True, self._made)

    def only(self, kinds: frozenset[int]) -> ObjectNames:
        """Return the names of these types alone, which cost less to make and to send."""
        makers = {kind: make for kind, make in self.makers.items() if kind in kinds}
        return ObjectNames(makers, self.is_for_sql)

    def __getstate__(self) -> tuple[bool, dict[int, NamesOfKind]]:
        missing = self.makers.keys() - self._made.keys()
        made = self._made | {kind: self.makers[kind]() for kind in missing}
        return self.is_for_sql, made

    def __setstate__(self, state: Any) -> None:
        self.makers = {}
        self.is_for_sql, self._made = state
