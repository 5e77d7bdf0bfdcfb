"""The files that catalogs had in turn, with the LSNs from which they have other ones. Pure.

    maps = CatalogMaps(store.map_log)
    maps.node(database, 1259, lsn) -> 16390      maps.nodes(database, 1259) -> {1259: 2345, …}
    nodes_by_rows(2615, classes)                 the same for a catalog that no map has

Contract: VACUUM FULL and CLUSTER give a catalog another file, and copy its rows. The rows in the
file before are not those of the catalog any more, and nothing in that file says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from walkeeper_replay.catalogs.catalog_layouts import OIDS
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.tuples.xids import NEVER

Nodes: TypeAlias = dict[int, int]
"""A catalog's files, each with the LSN from which the catalog has another one."""


@dataclass(frozen=True, slots=True)
class CatalogMaps:
    """See the module."""

    log: Sequence[tuple[int, int, Mapping[int, int]]]
    """(end of the record, database, its map from then on); the end is 0 for a backup's map."""

    def node(self, database: int, oid: int, lsn: int) -> int:
        """Return a catalog's file at `lsn`, or 0 if no map is known or it is not mapped."""
        node = 0
        for begin, of, nodes in self.log:
            if of == database and begin <= lsn:
                node = nodes.get(oid, node)
        return node

    def nodes(self, database: int, oid: int) -> Nodes:
        """Return a mapped catalog's files; the one with its OID for a number is among them."""
        found, last = {oid: NEVER}, 0
        for begin, of, nodes in self.log:
            node = nodes.get(oid, 0)
            if of != database or node in (0, last):
                continue
            if begin:
                found[last or oid] = begin
            found[node], last = NEVER, node
        return found

    def has(self, file: Relation) -> bool:
        """Return whether a map has, or once had, this file."""
        return any(of == file.database and file.relfilenode in n.values() for _, of, n in self.log)

    def rewritten(self) -> set[tuple[int, int]]:
        """Return (database, relfilenode) of the catalogs whose file does not have their OID."""
        return {
            (database, node)
            for _, database, nodes in self.log
            for oid, node in nodes.items()
            if oid in OIDS.values() and node != oid
        }


def nodes_by_rows(oid: int, classes: Iterable[tuple[tuple[int, int], Mapping[str, Any]]]) -> Nodes:
    """Return the files of a catalog by the rows of pg_class, which have their spans."""
    own = [(*span, row["relfilenode"]) for span, row in classes if row["oid"] == oid]
    found = {oid: min((begin for begin, _, _ in own), default=NEVER)}
    for _, end, node in own:
        found[node] = max(end, found.get(node, end))
    return found
