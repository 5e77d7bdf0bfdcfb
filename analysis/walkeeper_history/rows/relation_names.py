"""Names of relations, which WAL does not have: by the number of a file, from a catalog dump.

    names = load_names(["catalog.json"]); names.of((1663, 5, 16385))
    names.then((1663, 5, 16385), commit_lsn, uses)

A dump is JSON of `walkeeper history catalog`. It has the names in a server's catalogs at one time,
and the earlier names of the same file, so that names outlive their relations. A caller with names
from elsewhere (replayed catalogs) adds them with `RelationNames.add`. A relation has the name that
was added last. Several relations may have had one file's number in turn. `of` names each of them.
`then` returns the one at a commit, or none if that is not known. Pure, except for load_names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from walkeeper_history.rows.file_uses import FileUses, MadeFile, Relation
from walkeeper_history.time_text import parse_time
from walkeeper_wal.records.segment import Column
from walkeeper_wal.wal_errors import HistoryError

FORMAT = 1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


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
    """When the catalogs last had it, ISO 8601; in whole seconds in dumps of version 0.1."""

    @property
    def key(self) -> Relation:
        return self.reltablespace, self.reldatabase, self.relfilenode

    @property
    def shown(self) -> str:
        return f"{self.database}.{self.relation}" if self.database else self.relation


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The commits in (after, until] in which a relation had a file, as replayed catalogs know it.

    It had the file from `begin` on. From `known_from` on the catalogs name all other owners.
    """

    begin: int
    after: int
    until: int
    known_from: int

    def has(self, commit_lsn: int, following: MadeFile | None) -> bool:
        """Return True if a commit is one of them; `following` is the next file of its number."""
        is_in = self.begin <= commit_lsn and self.after < commit_lsn <= self.until
        return is_in and (following is None or following.commit_lsn > self.known_from)


class RelationNames:
    """The names of one cluster's relations. False if there are none."""

    def __init__(self, system_id: int | None = None, named: Iterable[NamedRelation] = ()) -> None:
        self.system_id = system_id
        self._named: dict[Relation, dict[Tenancy | int, NamedRelation]] = {}
        """The relations that had a file, by their tenancy, or by OID if it is not known."""
        for each in named:
            self.add(each)

    def add(self, named: NamedRelation, tenancy: Tenancy | None = None) -> None:
        """Add a name. A known tenancy of a file replaces names without one."""
        owners = self._named.setdefault(named.key, {})
        if tenancy is not None:
            for oid in [each for each in owners if isinstance(each, int)]:
                del owners[oid]
        key = named.oid if tenancy is None else tenancy
        owners.pop(key, None)
        owners[key] = named
        vars(self).pop("_lookup", None)

    def take(self, other: RelationNames) -> None:
        """Add the names of `other`, which come first."""
        for owners in other._named.values():
            for key, named in owners.items():
                self.add(named, key if isinstance(key, Tenancy) else None)

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[NamedRelation]:
        return (each for owners in self._named.values() for each in owners.values())

    def of(self, relation: Relation) -> str | None:
        """Return `database.schema.relation` for people, or None if the name is unknown.

        Name each one if several relations had the file.
        """
        return " or ".join(dict.fromkeys(each.shown for each in self._owners(relation))) or None

    def _owners(self, relation: Relation) -> Iterable[NamedRelation]:
        return self._named.get(relation, {}).values()

    def then(self, relation: Relation, commit_lsn: int, uses: FileUses) -> NamedRelation | None:
        """Return the relation that had a file up to a commit, or None if it is not known."""
        made, following = uses.around(relation, commit_lsn)
        found = None
        for tenancy, named in self._named.get(relation, {}).items():
            if isinstance(tenancy, Tenancy):
                is_it = tenancy.has(commit_lsn, following)
            else:
                is_it = _was_seen_between(named, made, following)
            found = named if is_it else found
        return found

    def called(self, name: str) -> set[NamedRelation]:
        """Return all that had this name: `orders`, `public.orders` or `shop.public.orders`."""
        return {
            each
            for each in self
            if name in (each.relation, each.relation.rpartition(".")[2], each.shown)
        }

    @cached_property
    def _lookup(self) -> tuple[Column, Column, list[str | None], list[str | None]]:
        """Keys in order, the tablespace of each, and its names; one more at the end for none."""
        files = sorted(self._named, key=lambda file: (file[1], file[2]))
        keys = _keys(
            np.array([database for _, database, _ in files], np.uint64),
            np.array([node for _, _, node in files], np.uint64),
        )
        spaces = np.array([space for space, _, _ in files], np.int64)
        databases = [next(iter(self._owners(file))).database or None for file in files]
        relations = [
            " or ".join(dict.fromkeys(each.relation for each in self._owners(file)))
            for file in files
        ]
        return keys, spaces, [*databases, None], [*relations, None]

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


def _was_seen_between(
    named: NamedRelation, made: MadeFile | None, following: MadeFile | None
) -> bool:
    """Return True if a dump saw a relation after its file was `made` and before the `following`."""
    if made is None and following is None:
        return True
    if not named.seen:
        return False
    seen = parse_time(named.seen)
    until = seen if "." in named.seen else seen + _SECOND
    is_after = made is None or _time_of(made) <= seen
    return is_after and (following is None or until < _time_of(following))


def _time_of(made: MadeFile) -> datetime:
    return _EPOCH + timedelta(microseconds=made.time)


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
            for each in found:
                parse_time(each.seen or "2000-01-01")
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
