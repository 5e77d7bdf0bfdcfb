"""One log's folder: `control`, `slots`, `archived`, `reserved`, `wal/`, `orphans/`.

docs/reference/files.md lists them. Blocking, and without I/O of its own: two `Disk`s, the folder
and its `wal`, are given, and the shelf of `orphans/`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from walkeeper_common.errors import CorruptWal, Refused
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES
from walkeeper_common.quorum import LogKind
from walkeeper_common.timelines import Timelines, timeline_file_name, timeline_files
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.storage import control_file, reserved_timelines
from walkeeper_safekeeper.storage.disk_port import Disk
from walkeeper_safekeeper.storage.entry_store import EntryStore
from walkeeper_safekeeper.storage.orphans import Orphans, Shelf
from walkeeper_safekeeper.storage.sealed_file import seal, unseal
from walkeeper_safekeeper.storage.wal_recovery import DurableFacts, recover
from walkeeper_safekeeper.storage.wal_store import WalStore

CONTROL = "control"
SLOTS = "slots"
ARCHIVED = "archived"
ARCHIVED_MAGIC = b"WKARCHIV"
RESERVED = "reserved"


@dataclass(frozen=True, slots=True)
class OpenedWal:
    """The log as a start found it, durable up to flush_lsn.

    Its last record ends at flush_lsn. Or it is a switch that ends at record_lsn, and the rest of
    its segment is padding."""

    durable: Durable
    store: WalStore
    flush_lsn: Lsn
    record_lsn: Lsn


class LogFolder:
    """`path` is only for error texts."""

    def __init__(self, path: str, folder: Disk, wal: Disk, orphans: Shelf) -> None:
        self.path, self._folder, self._wal = path, folder, wal
        self.orphans = Orphans(orphans)
        self.timeline_files: dict[int, bytes] = {}  # that are stored; replaced as a whole

    def load_control(self) -> Durable | None:
        """Return the control file, or None if no log was prepared here.

        Raise CorruptWal with the file and the remedy.
        """
        if CONTROL not in self._folder.names():
            return None
        data = self._folder.read_at(CONTROL, 0, self._folder.size(CONTROL))
        return control_file.decode(data, f"{self.path}/{CONTROL}")

    def save_control(self, durable: Durable) -> None:
        """Replace the control file; it is durable on return (R1).

        The `.history` files of the timelines that are committed here are in `wal` before that, and
        before `timeline_files` says so. Those of a fork that is not reached may come to nothing.
        """
        last = Timelines(durable.history).before(durable.commit_lsn) if durable.history else 0
        files = timeline_files(durable.history)
        wanted = {timeline: text for timeline, text in files.items() if timeline <= last}
        for timeline, text in sorted(wanted.items()):
            if self.timeline_files.get(timeline) != text:
                self._wal.replace(timeline_file_name(timeline), text)
        self._folder.replace(CONTROL, control_file.encode(durable))
        self.timeline_files = wanted

    def load_slots(self) -> bytes | None:
        """Return the bytes of the slots file, or None."""
        if SLOTS not in self._folder.names():
            return None
        return self._folder.read_at(SLOTS, 0, self._folder.size(SLOTS))

    def save_slots(self, data: bytes) -> None:
        self._folder.replace(SLOTS, data)

    def load_reserved(self) -> reserved_timelines.Reserved:
        """Return the timeline numbers that are granted here. Raise CorruptWal with the remedy."""
        if RESERVED not in self._folder.names():
            return reserved_timelines.Reserved()
        data = self._folder.read_at(RESERVED, 0, self._folder.size(RESERVED))
        return reserved_timelines.decode(data, f"{self.path}/{RESERVED}")

    def save_reserved(self, reserved: reserved_timelines.Reserved) -> None:
        self._folder.replace(RESERVED, reserved_timelines.encode(reserved))

    def load_archived(self, url: str) -> Lsn | None:
        """Return the archived_lsn that was saved for this archive, or None.

        No promise depends on it. A damaged file counts as lost, and the offload compares the WAL
        with the archive again."""
        if ARCHIVED not in self._folder.names():
            return None
        data = self._folder.read_at(ARCHIVED, 0, self._folder.size(ARCHIVED))
        try:
            _, body = unseal(ARCHIVED_MAGIC, {1}, data, f"{self.path}/{ARCHIVED}")
        except CorruptWal:
            return None
        return Lsn(int.from_bytes(body[:8], "big")) if body[8:].decode() == url else None

    def save_archived(self, url: str, archived_lsn: Lsn) -> None:
        body = archived_lsn.to_bytes(8, "big") + url.encode()
        self._folder.replace(ARCHIVED, seal(ARCHIVED_MAGIC, 1, body))

    def create_wal(self, durable: Durable) -> None:
        """Make the first segment, before the configuration that promises it is saved.

        Raise Refused if there is WAL already. Its control file is gone, so its log is unknown, and
        it would count as this log's. A crash between the two steps may have left a segment of
        zeros, perhaps at another beginning.
        """
        store = self._store(durable)
        files = store.found_files()
        for start, timeline in sorted(files):
            name = segment_name(timeline, start, store.segment_bytes)
            if any(self._wal.read_at(name, 0, LONG_HEADER_BYTES)):
                raise Refused(
                    f"{self.path}/wal holds WAL ({name}), and no control file says of which log: "
                    f"move {self.path} out of the data directory and start this safekeeper again"
                )
        left = {file for file in files if file[0] != durable.begin_lsn}
        if left:
            store.unlink_files(left)
        store.create(durable.begin_lsn)

    def open_wal(self) -> OpenedWal:
        """Recover: find the end, make the disk agree with it, take down the marks."""
        durable = self.load_control()
        assert durable is not None and durable.configuration is not None, f"{durable=}"
        store = self._store(durable)
        facts = DurableFacts(
            creation_lsn=durable.begin_lsn,
            commit_lsn=durable.commit_lsn,
            reached_lsn=durable.reached_lsn,
            truncating_to=durable.truncating_to,
            suspect_from=durable.suspect_from,
            clean_stop=durable.clean_stop,
        )
        marked = durable

        def mark_cut(lsn: Lsn) -> None:
            self.save_control(replace(marked, truncating_to=lsn))

        try:
            found = recover(store, facts, mark_cut=mark_cut)
        except CorruptWal as error:
            raise CorruptWal(
                f"{self.path}/wal: {error}. Nothing was changed; this safekeeper does not vote. "
                "Replace it: walkeeper replace"
            ) from error
        durable = replace(
            durable,
            commit_lsn=min(durable.commit_lsn, found.flush_lsn),
            reached_lsn=min(durable.reached_lsn, facts.clamped(found.flush_lsn)),
            truncating_to=None,
            suspect_from=None,
            clean_stop=False,
        )
        self.save_control(durable)
        return OpenedWal(durable, store, found.flush_lsn, found.record.end_lsn)

    def _store(self, durable: Durable) -> WalStore:
        assert durable.configuration is not None, f"{durable=}"
        is_logical = durable.configuration.kind is LogKind.LOGICAL
        store = EntryStore if is_logical else WalStore
        return store(
            self._wal,
            segment_bytes=durable.configuration.segment_bytes,
            timelines=Timelines(durable.history),
            system_id=durable.configuration.system_id,
            lock=threading.Lock(),
        )
