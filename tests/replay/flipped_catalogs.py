"""Flips bytes of catalogs: in their rows, in a base backup's files, and in WAL.

    python -m tests.replay.flipped_catalogs --flips 5000 --seed 7

A flip of a row has no checksum that could tell it: the answer is an error of this program's, or
there is one. A flip of a file of a backup with checksums, or of WAL, is found, or the answer is as
without it. A traceback is never an answer. Exit codes: 0 nothing was found, 1 a flip did harm.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np

from tests.support.postgres_server import PostgresServer
from tests.support.program_parser import program_parser
from walkeeper_cli.program import run
from walkeeper_replay.catalogs.catalog import FIRST_NORMAL_OID
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.redo.base import FILENODE_MAP, BaseDirectory
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.wal_errors import HistoryError

BEFORE = """
CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (x int, y mood);
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT 2 * $1';
CREATE TABLE kept (id int PRIMARY KEY, m mood, p pair, q positive, g text, r int4range, f regproc);
ALTER TABLE kept DROP COLUMN g;
CREATE TABLE untouched (a int);
INSERT INTO untouched VALUES (7);
INSERT INTO kept VALUES (1, 'calm', '(1,wild)', 3, '[1,4)', 'twice');
"""
AFTER = """
ALTER TABLE kept ADD COLUMN later text DEFAULT 'x';
CREATE TYPE late AS ENUM ('one', 'two');
CREATE TABLE made (a int PRIMARY KEY, b late, c mood[], d text);
INSERT INTO made VALUES (1, 'one', '{calm}', repeat('long', 2000)), (2, 'two', NULL, NULL);
UPDATE kept SET q = 4;
DELETE FROM made WHERE a = 2;
"""
CATALOGS = (
    "pg_class",
    "pg_attribute",
    "pg_type",
    "pg_enum",
    "pg_namespace",
    "pg_range",
    "pg_index",
)
SHARED = ("pg_database", "pg_authid")
NAMED = (24, 2202, 2203, 2204, 2205, 2206, 4089, 4096, 4191)
HEADER_BYTES, SEGMENT_BYTES = 23, 1 << 20


class Harm(AssertionError):
    """A flip that gave another answer, and nobody said so."""


@dataclass(frozen=True, slots=True)
class World:
    """A server's WAL, a base backup, and the catalogs' files in it."""

    wal: Path
    backup: Path
    catalogs: tuple[Path, ...]
    untouched: Path
    """The file of a table that no WAL behind the backup's beginning changes."""

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        where = ("--path", str(self.wal), "--base", str(self.backup))
        return (
            ("table-at", "kept", *where),
            ("changes", "--table", "kept", "--database", "postgres", *where),
            ("undo", "--table", "kept", "--database", "postgres", *where),
            ("find", "delete", "--relation", "public.made", *where),
        )


@contextmanager
def world(*, has_checksums: bool) -> Iterator[World]:
    """Yield the world of a server that works before and behind a backup."""
    options = ["--wal-segsize=1", *(["--data-checksums"] if has_checksums else [])]
    settings = {"wal_keep_size": "8GB", "fsync": "off"}
    with PostgresServer.create(settings, initdb_options=options) as server:
        server.sql(*_statements(BEFORE))
        backup = server.base_backup()
        try:
            names = (f"SELECT pg_relation_filepath('{name}')" for name in (*CATALOGS, *SHARED))
            found = [backup.data / str(server.sql(name)) for name in names]
            found += [found[0].parent / FILENODE_MAP, backup.data / "global" / FILENODE_MAP]
            server.sql(*_statements(AFTER), "SELECT pg_switch_wal()", "CREATE TABLE later (a int)")
            untouched = backup.data / str(server.sql("SELECT pg_relation_filepath('untouched')"))
            yield World(server.data / "pg_wal", backup.data, tuple(found), untouched)
        finally:
            backup.delete()


def _statements(text: str) -> list[str]:
    return text.strip().split("\n")


def answer(command: tuple[str, ...]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a command. An exception of it is one here."""
    out, said = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(said):
        code = run(["history", *command])
    return code, out.getvalue(), said.getvalue()


@contextmanager
def flipped(path: Path, place: int, mask: int) -> Iterator[None]:
    """Change one byte of a file, and change it back."""
    _flip(path, place, mask)
    try:
        yield
    finally:
        _flip(path, place, mask)


def _flip(path: Path, place: int, mask: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ mask]))


def flip_rows(made: World, flips: int, seed: int) -> Counter[str]:
    """Flip bytes of catalog rows that WAL alone gives, each with every name that rows have."""
    files = open_files(str(made.wal))
    history = CatalogHistory.read(files, make_plan(files))
    versions, chosen, found = history._versions, random.Random(seed), Counter[str]()
    spans = list(zip(versions.place.tolist(), versions.length.tolist(), strict=True))
    spans = [span for span in spans if _is_of_users(versions.arena, *span)]
    assert _read(history) == "read", "without a flip"
    for number in range(flips):
        place, length = chosen.choice(spans)
        at = place + chosen.randrange(HEADER_BYTES - 5, length)
        before, mask = int(versions.arena[at]), _mask(chosen)
        versions.arena[at] = before ^ mask
        history._names, history._steps, history._codecs, history._spaces_of = None, {}, None, {}
        try:
            found[_read(history)] += 1
        except Exception as error:
            raise Harm(
                f"seed {seed}, flip {number}: byte {at - place} of a row: {error!r}"
            ) from error
        finally:
            versions.arena[at] = before
    return found


def _is_of_users(arena: Bytes, place: int, length: int) -> bool:
    """Return whether a row begins with the number of an object that a user made."""
    if length <= HEADER_BYTES:
        return False
    begin = place + int(arena[place + HEADER_BYTES - 1])
    return int(arena[begin : begin + 4].view("<u4")[0]) >= FIRST_NORMAL_OID


def _read(history: CatalogHistory) -> str:
    try:
        database = history.database(history.end_lsn, "5")
        catalog = history.at(history.end_lsn, database)
        history.names()
        history.file_steps(database.oid)
        history.rewritten()
        for kind in NAMED:
            catalog.types.names.name(kind, 16384)
        for each in (each for each in catalog.tables() if each.oid >= FIRST_NORMAL_OID):
            try:
                catalog.table(each)
            except HistoryError:
                return "refused"
        catalog.find("made")
    except HistoryError:
        return "refused"
    return "read"


def _mask(chosen: random.Random) -> int:
    return chosen.choice((1 << chosen.randrange(8), chosen.randrange(1, 256)))


def flip_files(made: World, flips: int, seed: int, *, is_found: bool) -> Counter[str]:
    """Flip bytes of the backup's catalogs. With `is_found`, checksums find each one that counts."""
    chosen, found = random.Random(seed), Counter[str]()
    whole = {command: answer(command) for command in made.commands}
    for number in range(flips):
        path, command = chosen.choice(made.catalogs), chosen.choice(made.commands)
        place, mask = chosen.randrange(path.stat().st_size), _mask(chosen)
        with flipped(path, place, mask):
            found[_judged(f"seed {seed}, flip {number}: {path.name} at {place}",
                          command, whole[command],
                          is_found=is_found, names=(path.name, "block"))] += 1  # fmt: skip
    return found


def flip_wal(made: World, flips: int, seed: int) -> Counter[str]:
    """Flip bytes of WAL: a record's CRC, or the page's header, finds each one."""
    chosen, found = random.Random(seed), Counter[str]()
    whole = {command: answer(command) for command in made.commands}
    base, files, commands = (
        BaseDirectory(str(made.backup)),
        open_files(str(made.wal)),
        made.commands,
    )
    plan = make_plan(files, start_lsn=base.redo_lsn)
    end_lsn = CatalogHistory.read(files, plan, base=base).end_lsn
    used: list[tuple[Path, int]] = []
    for segment in plan.segments[:-1]:  # in the last one, damage may be the end of the log
        path, begin = made.wal / segment.path, segment.first_lsn
        # Zeros behind a switch are no WAL.
        places = np.flatnonzero(np.fromfile(path, np.uint8)) + begin
        places = places[(places >= base.redo_lsn) & (places < end_lsn)] - begin
        used += [(path, place) for place in places.tolist()]
    for number in range(flips):
        (path, place), command, mask = chosen.choice(used), chosen.choice(commands), _mask(chosen)
        with flipped(path, place, mask):
            found[_judged(f"seed {seed}, flip {number}: {path.name} at {place}",
                          command, whole[command],
                          is_found=True, names=(path.name, "0/"))] += 1  # fmt: skip
    return found


def _judged(
    what: str, command: tuple[str, ...], whole: tuple[int, str, str],
    *, is_found: bool, names: tuple[str, ...],
) -> str:  # fmt: skip
    """Return what came of a flip. Raise Harm if it is another answer, and nobody said so."""
    try:
        code, out, said = answer(command)
    except Exception as error:
        raise Harm(f"{what}: {error!r}") from error
    if (code, out) == whole[:2]:
        return "no matter"
    if code == 0 and is_found:
        raise Harm(f"{what}: {out} instead of {whole[1]}; {said}")
    if is_found and code and not any(name in said for name in names):
        raise Harm(f"{what}: no place is named: {said}")
    return "said" if code else "another answer"


def main() -> int:
    parser = program_parser("tests.replay.flipped_catalogs", __doc__)
    parser.add_argument("--flips", type=int, default=2000, help="of rows; a tenth of files  [2000]")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    try:
        for has_checksums in (True, False):
            with world(has_checksums=has_checksums) as made:
                rows = flip_rows(made, asked.flips, asked.seed)
                files = flip_files(made, asked.flips // 10, asked.seed, is_found=has_checksums)
                wal = flip_wal(made, asked.flips // 10, asked.seed)
            for kind, figures in (("rows", rows), ("files", files), ("WAL", wal)):
                sys.stdout.write(f"checksums {has_checksums}, {kind}: {dict(figures)}\n")
    except Harm as error:
        sys.stdout.write(f"FOUND: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
