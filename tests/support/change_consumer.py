"""A consumer of changes: the installed pg_recvlogical, and a reader of its output.

    received = receive(port, slot, endpos)       all bytes up to an LSN
    replica = Replica(); replica.apply(received) tables as a subscriber would have them

The documentation alone is the source of this pgoutput decoder: it imports nothing of walkeeper.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import calcsize, unpack_from
from typing import Any

from tests.support.postgres_server import program, run_program, server_environment
from tests.support.waiting import LIMIT_S

Row = dict[str, str | None]


def consumer_arguments(
    port: int, slot: str, *more: str, publications: str = "p", database: str = "postgres"
) -> list[str]:
    """Return the command of a pg_recvlogical on a safekeeper's port, or on another server's."""
    where = f"host=127.0.0.1 port={port} user=postgres dbname={database}"
    options = ("-o", "proto_version=1", "-o", f"publication_names={publications}")
    return [program("pg_recvlogical"), "-d", where, "-S", slot, *options, *more]


def create_slot(port: int, slot: str) -> None:
    run_program(consumer_arguments(port, slot, "--create-slot", "-P", "pgoutput"))


def drop_slot(port: int, slot: str) -> None:
    run_program(consumer_arguments(port, slot, "--drop-slot"))


def receive(port: int, slot: str, endpos: str) -> bytes:
    """Return all bytes from the slot's position up to `endpos`.

    The slot stays where it is known to be read, so that a second call returns only newer bytes.
    """
    arguments = consumer_arguments(port, slot, "--start", "-n", "-f", "-", "--endpos", endpos)
    done = subprocess.run(
        arguments,
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{done.stderr.decode()}"
    return done.stdout


class LiveConsumer:
    """pg_recvlogical that runs beside the load and connects again by itself."""

    def __init__(self, port: int, slot: str, file: Path) -> None:
        self.file = file
        self._log = file.with_suffix(".log").open("wb")
        arguments = consumer_arguments(port, slot, "--start", "-v", "-f", str(file))
        self._process = subprocess.Popen(
            [*arguments, "-s", "1", "-F", "1"],
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            stderr=self._log,
        )

    def __enter__(self) -> LiveConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def received(self) -> bytes:
        return self.file.read_bytes() if self.file.exists() else b""


@dataclass
class Relation:
    """A Relation message: a table's name and columns, as the changes after it have them."""

    name: str
    columns: list[str]
    keys: list[str]


Change = tuple[str, Relation, Row | None, Row | None]  # its kind, the row before it and after


@dataclass
class Transaction:
    """The changes from one Begin to its Commit."""

    xid: int
    commit_lsn: int
    end_lsn: int = 0
    changes: list[Change] = field(default_factory=list)


class _Reading:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = unpack_from("!" + layout, self.data, self.at)
        self.at += calcsize("!" + layout)
        return values

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        text, self.at = self.data[self.at : end].decode(), end + 1
        return text

    def row(self, columns: list[str]) -> Row:
        (count,) = self.take("H")
        assert count == len(columns), f"{count=} {columns=}"
        found: Row = {}
        for column in columns:
            (kind,) = self.take("c")
            if kind == b"t":
                (size,) = self.take("I")
                found[column] = self.data[self.at : self.at + size].decode()
                self.at += size
            elif kind == b"n":
                found[column] = None
            else:
                assert kind == b"u", f"{kind=}"  # unchanged TOAST: left out
        return found


def transactions(data: bytes) -> list[Transaction]:
    """Return the whole transactions of pg_recvlogical's output, which ends messages by newlines."""
    reading, relations, found = _Reading(data), dict[int, Relation](), list[Transaction]()
    current: Transaction | None = None
    while reading.at < len(data):
        (kind,) = reading.take("c")
        if kind == b"B":
            assert current is None, f"nested at {reading.at}"
            lsn, _, xid = reading.take("QqI")
            current = Transaction(xid, lsn)
        elif kind == b"C":
            assert current is not None
            _, lsn, current.end_lsn, _ = reading.take("BQQq")
            assert lsn == current.commit_lsn
            found.append(current)
            current = None
        elif kind == b"R":
            _relation(reading, relations)
        elif kind == b"M":
            lsn, change = _emitted(reading)
            if current is None:
                found.append(Transaction(0, lsn, lsn, [change]))
            else:
                current.changes.append(change)
        elif kind == b"O":
            assert current is not None and not current.changes
            reading.take("Q")
            current.changes.append(("O", Relation(reading.text(), [], []), None, None))
        elif kind == b"Y":
            reading.take("I")
            reading.text(), reading.text()
        else:
            assert current is not None, f"{kind!r} outside at {reading.at}"
            _change(kind.decode(), reading, relations, current)
        assert data[reading.at : reading.at + 1] == b"\n", f"{kind!r} at {reading.at}"
        reading.at += 1
    return found


def _emitted(reading: _Reading) -> tuple[int, tuple[str, Relation, None, Row]]:
    """Read a message of pg_logical_emit_message; its prefix is the relation's name."""
    _, lsn = reading.take("BQ")
    relation = Relation(reading.text(), [], [])
    (size,) = reading.take("I")
    content = reading.data[reading.at : reading.at + size].decode()
    reading.at += size
    return lsn, ("M", relation, None, {"content": content})


def _relation(reading: _Reading, relations: dict[int, Relation]) -> None:
    (oid,) = reading.take("I")
    name = f"{reading.text()}.{reading.text()}"
    _, count = reading.take("cH")
    columns, keys = [], []
    for _ in range(count):
        (flags,) = reading.take("B")
        columns.append(reading.text())
        reading.take("Ii")
        if flags & 1:
            keys.append(columns[-1])
    relations[oid] = Relation(name, columns, keys)


def _change(
    kind: str, reading: _Reading, relations: dict[int, Relation], current: Transaction
) -> None:
    if kind == "T":
        count, _ = reading.take("IB")
        for oid in reading.take(f"{count}I"):
            current.changes.append((kind, relations[oid], None, None))
        return
    (oid,) = reading.take("I")
    relation = relations[oid]  # KeyError: a change of what was never described
    old = new = None
    (part,) = reading.take("c")
    if part in (b"K", b"O"):
        old = reading.row(relation.columns)
        part = reading.take("c")[0] if kind == "U" else b""
    if part == b"N":
        new = reading.row(relation.columns)
    current.changes.append((kind, relation, old, new))


class Replica:
    """Tables by name: rows by key, or counted where there is no key.

    `keys` has the keys of tables that got theirs at the primary only after their first rows.
    """

    def __init__(self, keys: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._keys = dict(keys or {})
        self.keyed: dict[str, dict[tuple[str | None, ...], Row]] = {}
        self.counted: dict[str, Counter[tuple[tuple[str, str | None], ...]]] = {}

    def apply(self, transaction: Transaction) -> None:
        for kind, relation, old, new in transaction.changes:
            keys = self._keys.get(relation.name, tuple(relation.keys))
            if kind == "T":
                self.keyed.pop(relation.name, None)
                self.counted.pop(relation.name, None)
                continue
            if not keys:
                assert kind == "I" and new is not None, f"{kind} of {relation}"
                rows = self.counted.setdefault(relation.name, Counter())
                rows[_filled(new)] += 1
                continue
            table = self.keyed.setdefault(relation.name, {})
            before = table.pop(_key(keys, old or new), None) if kind != "I" else None
            assert kind == "I" or before is not None, f"{kind} of a row that is not there: {old}"
            if new is not None:
                key = _key(keys, new)
                assert key not in table, f"{relation.name} has {key} twice"
                table[key] = {**(before or {}), **new}

    def rows(self, table: str) -> list[tuple[tuple[str, str | None], ...]]:
        """Return the sorted rows without null columns: older rows lack columns added later."""
        if table in self.counted:
            return sorted(self.counted[table].elements(), key=repr)
        return sorted((_filled(row) for row in self.keyed.get(table, {}).values()), key=repr)


def _key(keys: tuple[str, ...], row: Row | None) -> tuple[str | None, ...]:
    assert row is not None
    return tuple(row[name] for name in keys)


def _filled(row: Row) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((name, value) for name, value in row.items() if value is not None))
