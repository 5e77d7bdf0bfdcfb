"""Names of relations, which WAL does not have: by the number of a file, from a catalog dump.

    names = load_names(["catalog.json"]); names.of((1663, 5, 16385))

A dump is JSON of `walkeeper history catalog`. It has the names in a server's catalogs at one time,
and the earlier names of the same file, so that names outlive their relations. A caller with names
from elsewhere (replayed catalogs) adds them with `RelationNames.add`. If a file has two names, the
one that was added last is shown. Pure, except for load_names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from walkeeper_wal.errors import HistoryError
from walkeeper_wal.records.segment import Column

Relation = tuple[int, int, int]
FORMAT = 1


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """A relation's file, as WAL knows it, and its names; `database` is empty for shared ones."""

    reltablespace: int
    reldatabase: int
    relfilenode: int
    oid: int
    database: str
    relation: str
    """With its schema, quoted where SQL needs it: `public.orders`, `TOAST of public.orders`."""
    seen: str = ""
    """When the catalogs last had it, ISO 8601."""

    @property
    def key(self) -> Relation:
        return self.reltablespace, self.reldatabase, self.relfilenode


class RelationNames:
    """The names of one cluster's relations. False if there are none."""

    def __init__(self, system_id: int | None = None, named: Iterable[NamedRelation] = ()) -> None:
        self.system_id = system_id
        self._named: dict[Relation, NamedRelation] = {}
        for each in named:
            self.add(each)

    def add(self, named: NamedRelation) -> None:
        self._named[named.key] = named
        vars(self).pop("_lookup", None)

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[NamedRelation]:
        return iter(self._named.values())

    def of(self, relation: Relation) -> str | None:
        """Return `database.schema.relation` for people, or None if the name is unknown."""
        found = self._named.get(relation)
        if found is None:
            return None
        return f"{found.database}.{found.relation}" if found.database else found.relation

    def shown(self, relation: Relation) -> str:
        """Return the name, if it is known, and the numbers."""
        numbers, name = "/".join(map(str, relation)), self.of(relation)
        return f"{name} ({numbers})" if name else numbers

    def called(self, name: str) -> set[Relation]:
        """Return all that had this name: `orders`, `public.orders` or `shop.public.orders`."""
        return {
            key
            for key, each in self._named.items()
            if name in (each.relation, each.relation.rpartition(".")[2], self.of(key))
        }

    @cached_property
    def _lookup(self) -> tuple[Column, Column, list[str | None], list[str | None]]:
        """Keys in order, the tablespace of each, and its names; one more at the end for none."""
        named = sorted(self, key=lambda each: (each.reldatabase, each.relfilenode))
        keys = _keys(
            np.array([each.reldatabase for each in named], np.uint64),
            np.array([each.relfilenode for each in named], np.uint64),
        )
        spaces = np.array([each.reltablespace for each in named], np.int64)
        databases = [each.database or None for each in named]
        return keys, spaces, [*databases, None], [*(each.relation for each in named), None]

    def find(self, spaces: Column, databases: Column, nodes: Column) -> Column:
        """Return the index of each relation's names in `columns`."""
        keys, known_spaces, *_ = self._lookup
        wanted = _keys(databases, nodes)
        at = np.searchsorted(keys, wanted)
        near = np.minimum(at, max(len(keys) - 1, 0))
        if not len(keys):
            return np.zeros(len(wanted), np.int64)
        is_it = (keys[near] == wanted) & (known_spaces[near] == spaces)
        found: Column = np.where(is_it, near, len(keys)).astype(np.int64)
        return found

    @property
    def columns(self) -> tuple[list[str | None], list[str | None]]:
        """Databases and relations, by the indices of `find`."""
        return self._lookup[2], self._lookup[3]

    def check(self, system_id: int | None) -> None:
        """Raise HistoryError if the names are those of another cluster."""
        if None not in (system_id, self.system_id) and system_id != self.system_id:
            raise HistoryError(
                f"the names are those of cluster {self.system_id}, the WAL is of {system_id}: "
                "give the names of the server that wrote this WAL"
            )

    def document(self) -> dict[str, Any]:
        """Return the JSON document that load_names reads."""
        relations = [asdict(each) for each in self]
        identifier = None if self.system_id is None else str(self.system_id)
        return {"format": FORMAT, "system_identifier": identifier, "relations": relations}


def _keys(databases: Column, nodes: Column) -> Column:
    keys: Column = databases.astype(np.uint64) << np.uint64(32) | nodes.astype(np.uint64)
    return keys


def load_names(paths: Iterable[str | Path]) -> RelationNames:
    """Return the names of all these dumps; a later dump's name replaces an earlier one's."""
    names = RelationNames()
    for path in paths:
        try:
            document = json.loads(Path(path).read_text())
            if document["format"] != FORMAT:
                raise HistoryError(
                    f"{path}: a catalog of format {document['format']}, not {FORMAT}"
                )
            identifier = document["system_identifier"]
            found = RelationNames(
                None if identifier is None else int(identifier),
                (NamedRelation(**each) for each in document["relations"]),
            )
        except OSError as error:
            raise HistoryError(f"{path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            text = f"{path}: not a catalog that `walkeeper history catalog` wrote: {error}"
            raise HistoryError(text) from error
        names.check(found.system_id)
        names.system_id = found.system_id or names.system_id
        for each in found:
            names.add(each)
    return names
