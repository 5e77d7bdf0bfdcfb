"""A base backup's directory (or a stopped server's): pages and transactions from before the WAL.

    base = BaseDirectory("/backups/main"); base.start_lsn, base.redo_lsn, base.database_oids()

Contract: the backup is in plain format (pg_basebackup -Fp). Its backup_label or pg_control says
from where on WAL is needed. The directory is read, never written. A page as torn as a running
server may have left it is overwritten by its first image, which the WAL from redo_lsn on has.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from pathlib import Path
from struct import unpack_from

import numpy as np
from crc32c import crc32c

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.control_data import (
    ControlData,
    InvalidControlData,
    parse_control_data,
)
from walkeeper_replay.redo.backup_label import read_label
from walkeeper_replay.redo.files_of_records import parse_map
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.redo.tablespaces import Tablespaces
from walkeeper_replay.redo.wal_pass import xlog_records
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch
from walkeeper_wal.sources.segment_timelines import passes_through
from walkeeper_wal.wal_errors import HistoryError

DEFAULT_TABLESPACE, GLOBAL_TABLESPACE = 1663, 1664
FILENODE_MAP = "pg_filenode.map"
_SLRU_PAGES = 32
_XIDS_PER_PAGE, _COMMITTED, _SUB_COMMITTED = PAGE_BYTES * 4, 1, 3
_FIRST_MULTIXACT, _LAST_MULTIXACT, _MEMBERS_MASK = 1, 0xFFFFFFFF, 0xFFFFFFFF
_MEMBERS_PER_GROUP, _GROUP_BYTES, _GROUPS_PER_PAGE = 4, 20, 409
_VERSION = re.compile(rb"([0-9]{1,4})\b")
_LC_MONETARY = re.compile(r"^\s*lc_monetary\s*=?\s*'?([^'#\s]+)", re.MULTILINE | re.IGNORECASE)
_INCLUDES = re.compile(r"^\s*include", re.MULTILINE | re.IGNORECASE)
_CONTROL_REDO, _CONTROL_CHECKPOINT = 40, 32
_CONTROL_STATE, _CONTROL_CHECKPOINT_TIME = 16, 104
_CONTROL_FLOAT, _FLOAT, _CONTROL_CHECKSUMS = 208, 1234567.0, 252
_SHUT_DOWN = (1, 2)  # also in recovery
_BACKUP_END, _CHECKPOINTS = 0x50, (0x00, 0x10)  # shutdown, online


class BaseDirectory:
    """See the module."""

    def __init__(self, path: str) -> None:
        self.root = Path(path)
        if not (self.root / "PG_VERSION").is_file():
            raise HistoryError(f"{path}: no PG_VERSION in it, so not a data directory or backup")
        self.major = self._major()
        control, known = self._control()
        if known.block_bytes != PAGE_BYTES:
            raise HistoryError(
                f"{path} is of a server with blocks of {known.block_bytes} bytes: replay reads "
                f"blocks of {PAGE_BYTES} bytes only"
            )
        self.file_blocks = known.file_blocks
        """The pages in each file of a relation, but for the last one."""
        self.system_id = int(unpack_from("<Q", control)[0])
        seconds = int(unpack_from("<q", control, _CONTROL_CHECKPOINT_TIME)[0])
        self.checkpoint_time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        is_known = unpack_from("<d", control, _CONTROL_FLOAT)[0] == _FLOAT
        self.has_checksums = is_known and unpack_from("<I", control, _CONTROL_CHECKSUMS)[0] > 0
        label = read_label(self.root)
        last_redo, last_checkpoint = (
            int(unpack_from("<Q", control, place)[0])
            for place in (_CONTROL_REDO, _CONTROL_CHECKPOINT)
        )
        self.redo_lsn = last_redo if label is None else int(label.redo_lsn)
        self.checkpoint_lsn = last_checkpoint if label is None else int(label.checkpoint_lsn)
        """The start of the checkpoint's record, with which a recovery begins."""
        timeline = None if label is None else label.timeline
        self.timeline = timeline or known.checkpoint_timeline
        """The timeline at redo_lsn."""
        self._replayed_timeline = known.min_recovery_timeline
        self._spaces = Tablespaces(self.root, is_backup=label is not None)
        self.ends_in_wal = False
        """True if it is consistent only from its BACKUP_END record on."""
        self._replayed_lsn = int(known.min_recovery_lsn)  # 0: a primary's
        self.consistent_lsn = max(self.redo_lsn, self._replayed_lsn)
        self.end_lsn: int | None = self.consistent_lsn
        """No page is later than this. It is None until the walk meets the backup's last record."""
        if label is not None:
            self.ends_in_wal = not label.is_of_standby
            self.end_lsn = None if self.ends_in_wal else self.consistent_lsn
        elif int(unpack_from("<I", control, _CONTROL_STATE)[0]) not in _SHUT_DOWN:
            raise HistoryError(
                f"{path}: neither a backup (no backup_label) nor the directory of a server that "
                "was shut down, so its pages are of no one place: take a base backup with "
                "pg_basebackup"
            )

    def _major(self) -> int:
        """Return the version of the server's program; HistoryError if PG_VERSION has none."""
        path = self.root / "PG_VERSION"
        found = _VERSION.match(path.read_bytes())
        if found is None:
            raise HistoryError(
                f"{path}: damaged: no version of PostgreSQL; read another copy of the base backup"
            )
        return int(found[1])

    def _control(self) -> tuple[bytes, ControlData]:
        """Return pg_control; HistoryError if its bytes are not as a server wrote them."""
        path = self.root / "global" / "pg_control"
        try:
            control = path.read_bytes()
            known = parse_control_data(control)
        except (OSError, InvalidControlData) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise HistoryError(f"{path}: {why}; read another copy of the base backup") from error
        return control, known

    def lc_monetary(self) -> str | None:
        """Return the setting in the configuration files, or None if it is not known."""
        found = None
        for name in ("postgresql.conf", "postgresql.auto.conf"):
            path = self.root / name
            text = path.read_text("utf-8", "replace") if path.is_file() else ""
            if _INCLUDES.search(text):
                return None
            found = next(reversed(_LC_MONETARY.findall(text)), found)
        return found

    def refuse_wal(self, plan: Plan) -> None:
        """Raise HistoryError unless the WAL leads on from here: of this cluster, from redo_lsn on,
        and on the same timeline."""
        if plan.system_id not in (None, self.system_id):
            raise HistoryError(
                f"{self.root} is of cluster {self.system_id}, the WAL is of {plan.system_id}; "
                "initdb and pg_upgrade make a new cluster: give a backup and WAL of the same one"
            )
        first = plan.segments[0]
        if max(first.begin_lsn, first.first_lsn) > self.redo_lsn:
            raise HistoryError(
                f"the base backup needs WAL from {Lsn(self.redo_lsn)} on; it begins at "
                f"{Lsn(first.begin_lsn)}"
            )
        # The byte before minRecoveryPoint is the last one that was replayed.
        places = [(self.redo_lsn, self.timeline), (self._replayed_lsn - 1, self._replayed_timeline)]
        for lsn, timeline in places:
            if timeline and not passes_through(plan.path, lsn, timeline):
                raise HistoryError(
                    f"{self.root} is of timeline {timeline} at {Lsn(lsn)}, which the WAL of "
                    f"timeline {plan.timeline} left before: give a backup that this timeline "
                    "comes from, or name the backup's own (--timeline)"
                )

    def refuse_time_before(self, time: datetime) -> None:
        """Refuse a time before the backup's checkpoint. The first commit after the backup need not
        be the first commit since that time. Commits between that time and the backup are in its
        pages."""
        if time < self.checkpoint_time:
            raise HistoryError(
                f"{self.root} is of {self.checkpoint_time}, after {time}: ask for a later time, or "
                "take an earlier backup"
            )

    def end_in(self, batch: Batch) -> int | None:
        """Return the end of this backup's BACKUP_END record, or None if it is not there."""
        for row in xlog_records(batch, _BACKUP_END):
            begin = int(batch.records["main_offset"][row])
            if int(batch.payload[begin : begin + 8].view(np.uint64)[0]) == self.redo_lsn:
                return int(batch.end_lsn()[row])
        return None

    def directory(self, tablespace: int, database: int) -> Path:
        if tablespace == GLOBAL_TABLESPACE:
            return self.root / "global"
        if tablespace == DEFAULT_TABLESPACE:
            return self.root / "base" / str(database)
        place = self._spaces.places.get(tablespace)
        inner = [] if place is None else sorted(place.glob(f"PG_{self.major}_*"))
        return inner[0] / str(database) if inner else self.root / "pg_tblspc" / "none"

    def databases(self) -> list[tuple[int, int]]:
        """List (tablespace, database) of each database.

        A tablespace with some of a database's tables has a directory of that name, too. It has no
        map of catalogs.
        """
        homes = [(DEFAULT_TABLESPACE, path) for path in sorted((self.root / "base").iterdir())]
        homes += [
            (oid, path)
            for oid, space in self._spaces.places.items()
            for path in space.glob(f"PG_{self.major}_*/*")
        ]
        return [
            (space, int(path.name))
            for space, path in homes
            if path.name.isdigit() and (path / FILENODE_MAP).is_file()
        ]

    def map_of(self, tablespace: int, database: int) -> dict[int, int]:
        """Return the relfilenodes of mapped catalogs."""
        path = self.directory(tablespace, database) / FILENODE_MAP
        self._spaces.refuse_other(path)
        return checked_map(path) if path.is_file() else {}

    def read(self, relation: Relation) -> Bytes | None:
        """Return all pages of a relation's main fork, or None without its file."""
        files = self._files(relation)
        if not files:
            return None
        pieces = [np.fromfile(path, np.uint8) for path, _ in files]
        data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        whole = len(data) // PAGE_BYTES * PAGE_BYTES
        pages = data[:whole].reshape(-1, PAGE_BYTES)
        if self.end_lsn is not None:
            self._spaces.refuse_later(files[0][0], pages, self.end_lsn)
        return pages

    def damaged(self, pages: Bytes, blocks: Column) -> Column:
        """Return which pages of a heap are not as a server wrote them, by layout and checksum.

        Such a page may also be torn, as in a backup of a running server.
        """
        found: Bytes = np.empty(len(pages), np.uint8)
        loops.check_pages(pages, blocks, self.has_checksums, found)
        damaged: Column = found != 0
        return damaged

    def block_count(self, relation: Relation) -> int | None:
        """Return the number of pages of a relation's main fork, or None without its file."""
        files = self._files(relation)
        return files[-1][1] if files else None

    def read_block(self, relation: Relation, block: int) -> Bytes:
        """Return one page of a relation's main fork."""
        begin = 0
        for path, end in self._files(relation):
            if block < end:
                place = (block - begin) * PAGE_BYTES
                page = np.fromfile(path, np.uint8, PAGE_BYTES, offset=place)
                if self.end_lsn is not None:
                    self._spaces.refuse_later(path, page.reshape(1, -1), self.end_lsn)
                return page
            begin = end
        raise AssertionError(f"{relation} has {begin} blocks, not {block}")

    @lru_cache(maxsize=1024)  # noqa: B019
    def _files(self, relation: Relation) -> list[tuple[Path, int]]:
        """Return the files of a relation's main fork, and the number of blocks up to their ends.

        A file that is not full is the last one, as for a server (mdnblocks). In a backup of a
        running server, later files may be from before a truncation or after more growth.
        """
        first = self.directory(relation.tablespace, relation.database) / str(relation.relfilenode)
        found: list[tuple[Path, int]] = []
        total, path = 0, first
        self._spaces.refuse_other(path)
        while total == len(found) * self.file_blocks and path.is_file():
            total += min(path.stat().st_size // PAGE_BYTES, self.file_blocks)
            found.append((path, total))
            path = first.with_name(f"{first.name}.{len(found)}")
            self._spaces.refuse_other(path)
        return found

    def is_committed(self, xid: int) -> bool | None:
        """Return whether a transaction committed before redo_lsn, or None if this pg_xact lacks it.
        A transaction then in progress, or ended by a crash without any record, is not. A later
        commit's record is in the WAL."""
        page = self._slru("pg_xact", xid // _XIDS_PER_PAGE)
        if page is None:
            return None
        within = xid % _XIDS_PER_PAGE
        status = page[within // 4] >> 2 * (within % 4) & 3
        return status in (_COMMITTED, _SUB_COMMITTED)

    def updater(self, multixact: int) -> int | None:
        """Return the updater; members lie from this multixact's offset to the next one's.

        Both numbers begin again after their last one. The last multixact has no next one. Then its
        members end with a member without an xid.
        """
        following = _FIRST_MULTIXACT if multixact == _LAST_MULTIXACT else multixact + 1
        begin, end = self._offset(multixact), self._offset(following)
        if begin is None or not begin:
            return None
        for number in range(end - begin & _MEMBERS_MASK) if end else count():
            group, within = divmod(begin + number & _MEMBERS_MASK, _MEMBERS_PER_GROUP)
            page = self._slru("pg_multixact/members", group // _GROUPS_PER_PAGE)
            if page is None:
                return None
            at = group % _GROUPS_PER_PAGE * _GROUP_BYTES
            xid = int(unpack_from("<I", page, at + 4 + 4 * within)[0])
            if page[at + within] >= 4 or not xid:
                return xid
        return 0

    def _offset(self, multixact: int) -> int | None:
        page = self._slru("pg_multixact/offsets", multixact // (PAGE_BYTES // 4))
        if page is None:
            return None
        return int(unpack_from("<I", page, multixact % (PAGE_BYTES // 4) * 4)[0])

    @lru_cache(maxsize=64)  # noqa: B019
    def _slru(self, name: str, page: int) -> bytes | None:
        segment, within = divmod(page, _SLRU_PAGES)
        path = self.root / name / f"{segment:04X}"
        try:
            with path.open("rb") as file:
                file.seek(within * PAGE_BYTES)
                data = file.read(PAGE_BYTES)
        except FileNotFoundError:
            return None
        return data if len(data) == PAGE_BYTES else None


def checked_map(path: Path) -> dict[int, int]:
    """Return the relfilenodes in a map of catalogs; HistoryError if it is damaged."""
    data = path.read_bytes()
    # 504 bytes until 15, and 520 since; the CRC follows, and until 15 four bytes more.
    body = len(data) // 8 * 8 - 8 if len(data) % 8 == 0 else len(data) - 4
    found = parse_map(data)
    if not found or crc32c(data[:body]) != int.from_bytes(data[body : body + 4], "little"):
        raise HistoryError(f"{path}: damaged (its checksum): read another copy of the base backup")
    return found


class NotConsistent(HistoryError):
    """The WAL that was read ends before the backup is consistent."""


class OwnCheckpoint:
    """A check that WAL has the checkpoint's record with which a recovery of a backup begins.

    WAL of another history of the cluster has another record there, or none that begins there, and
    PostgreSQL does not start. The batches have all records from `begin_lsn` on.
    """

    def __init__(self, base: BaseDirectory, begin_lsn: int) -> None:
        self._base, self._begin_lsn = base, begin_lsn

    def add(self, batch: Batch) -> None:
        """Look for the record in a batch; raise HistoryError if another one is in its place."""
        wanted, begin, (_, end) = self._base.checkpoint_lsn, self._begin_lsn, batch.span()
        self._begin_lsn = end
        if not begin <= wanted < end:
            return
        for kind in _CHECKPOINTS:
            for row in xlog_records(batch, kind):
                at = int(batch.records["main_offset"][row])
                redo_lsn = int(batch.payload[at : at + 8].view(np.uint64)[0])
                if int(batch.start_lsn()[row]) == wanted and redo_lsn == self._base.redo_lsn:
                    return
        raise HistoryError(
            f"{self._base.root} begins with the checkpoint at {Lsn(wanted)}, and the WAL has "
            "another record there: the backup is of another history of this cluster, as after two "
            "promotions with one timeline number; give WAL and a backup of the same history"
        )


class Consistency:
    """A check that WAL was read up to where a backup is consistent: pages may be later before."""

    def __init__(self, base: BaseDirectory) -> None:
        self._base, self._checkpoint = base, OwnCheckpoint(base, base.redo_lsn)
        self._lsn = None if base.ends_in_wal else base.consistent_lsn

    def add(self, batch: Batch) -> None:
        """Look for the backup's checkpoint and its end, as a consumer of `pass_over`."""
        self._checkpoint.add(batch)
        if self._lsn is None:
            self._lsn = self._base.end_lsn = self._base.end_in(batch)

    def refuse_before(self, lsn: int) -> None:
        if self._lsn is None or lsn < self._lsn:
            place = "the end of the backup" if self._lsn is None else str(Lsn(self._lsn))
            raise NotConsistent(
                f"{self._base.root} is consistent only from {place} on, and the WAL was read up "
                f"to {Lsn(lsn)}: ask for a later place, or take an earlier backup"
            )
