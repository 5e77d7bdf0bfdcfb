"""The logs of one safekeeper: opened at start, created by `walkeeper create`, shown by `status`.

The asyncio shell's index by cluster name. A damaged control file or segment keeps only its own
log from opening. The catalogue answers every request for that log with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import TypeAlias

from walkeeper_common.cluster_name import CLUSTER_NAME
from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.shell.process.descriptors import kept_files_allowed
from walkeeper_common.shell.process.version import program_version
from walkeeper_common.shell.process.worker_thread import LoopShare
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.member_change import JoinLog
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.range_digest import DigestQuery
from walkeeper_common.wire.requests import (
    ConfigureLog,
    LogQuery,
    LogState,
    PrepareLog,
    StatusRequest,
    StatusResponse,
)
from walkeeper_common.wire.shared_slots import SLOT_ID_BYTES, SharedSlots
from walkeeper_common.wire.timeline_reservation import ReserveTimeline
from walkeeper_safekeeper.consensus.creation import configured, prepared, state_of
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import joined
from walkeeper_safekeeper.disk.disk_space import DiskSpace
from walkeeper_safekeeper.disk.disk_times import DiskTimes
from walkeeper_safekeeper.disk.dropped_logs import DroppedLogs
from walkeeper_safekeeper.disk.open_files import OpenFiles
from walkeeper_safekeeper.disk.orphan_shelf import OrphanShelf
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.log_status import log_status
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.storage.log_folder import CONTROL, LogFolder
from walkeeper_safekeeper.storage.tombstones import Tombstone

logger = logging.getLogger("walkeeper.catalog")

AdminRequest: TypeAlias = (
    LogQuery
    | PrepareLog
    | ConfigureLog
    | StatusRequest
    | JoinLog
    | ReserveTimeline
    | SharedSlots
    | DigestQuery
    | DropLog
)


TROUBLES = {
    RejectCode.UNKNOWN_LOG: "no_log",
    RejectCode.NOT_A_MEMBER: "prepared",
    RejectCode.STORAGE_FAILED: "failed",
}


class LogCatalog:
    """The logs of one safekeeper by cluster name. This process has claimed the data directory."""

    def __init__(
        self,
        settings: SafekeeperSettings,
        group: asyncio.TaskGroup,
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._data_dir, self._acceptor_id = settings.data_dir, settings.acceptor_id
        self._group, self._on_defect = group, on_defect
        self._loop_share = LoopShare()
        self._files = OpenFiles(kept_files_allowed())
        self.space = DiskSpace(settings.data_dir)
        self._open: dict[str, HostedLog] = {}
        self._prepared: dict[str, Durable] = {}
        self._broken: dict[str, str] = {}
        self._creating = asyncio.Lock()
        self._dropped = DroppedLogs(settings.data_dir)
        self._disks: dict[str, tuple[RealDisk, RealDisk]] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    async def open_all(self) -> None:
        """Open every log below the data directory; raise only if all of them are broken."""
        self._dropped.open()
        names = self._found()
        for cluster in names:
            try:
                await self._open_one(cluster)
            except WalkeeperError as error:
                self._broken[cluster] = str(error)
                logger.error("the log of cluster %s is not served: %s", cluster, error)
        if names and len(self._broken) == len(names):
            raise Refused("; ".join(self._broken.values()))

    def _found(self) -> list[str]:
        """Return the folders that hold a log, and those that may.

        An unreadable folder does not count as absent, since a member without its log has to be
        replaced."""
        entries = [e for e in os.scandir(self._data_dir) if CLUSTER_NAME.fullmatch(e.name)]
        return sorted(e.name for e in entries if e.is_dir() and _may_hold_log(e))

    async def _open_one(self, cluster: str) -> None:
        times = DiskTimes()
        folder = self._folder(cluster, times)
        durable = folder.load_control()
        if durable is not None and durable.acceptor_id != self._acceptor_id:
            raise Refused(
                f"{folder.path} belongs to safekeeper {durable.acceptor_id}, "
                f"this is safekeeper {self._acceptor_id}: move it out of the data directory"
            )
        known = self._dropped.tombstones
        buried = None if durable is None else known.find(durable.log_uuid)
        if buried is not None:  # a crash came between the tombstone and the removal
            self._dropped.remove(buried, lambda: None)
            return
        if durable is None or durable.configuration is None:
            if durable is not None:
                self._prepared[cluster] = durable
            return
        log = HostedLog(cluster, folder, self._settings, self._loop_share, times, _new_slot_id)
        await log.open(self._on_defect)
        self._open[cluster] = log
        self._tasks[cluster] = [
            self._group.create_task(each, name=f"{name} of {cluster}")
            for name, each in log.tasks().items()
        ]

    def _folder(self, cluster: str, times: DiskTimes | None = None) -> LogFolder:
        path = os.path.join(self._data_dir, cluster)
        files, bytes_max = self._files, self._settings.wal_bytes_max
        folder = RealDisk(path, files=files)
        wal_path = os.path.join(path, "wal")
        wal = RealDisk(wal_path, files=files, bytes_max=bytes_max, times=times)
        self._disks[cluster] = (folder, wal)
        return LogFolder(path, folder, wal, OrphanShelf(os.path.join(path, "orphans")))

    def logs(self) -> Sequence[HostedLog]:
        """Return the logs that are served."""
        return [self._open[name] for name in sorted(self._open)]

    def broken(self) -> dict[str, str]:
        """Return the reason for each log that failed to open, or whose disk has failed since."""
        failed = {log.cluster: log.driver.acceptor.failure for log in self.logs()}
        return {**self._broken, **{name: why for name, why in failed.items() if why}}

    async def close(self) -> None:
        """Stop every log cleanly."""
        await asyncio.gather(*(log.close() for log in self._open.values()))

    # For the proposers' sessions

    def hosted(self, cluster: str) -> HostedLog | Reject:
        """Return the log, or a Reject with the reason."""
        log = self._open.get(cluster)
        if log is not None:
            return log
        if cluster in self._broken:
            return Reject(RejectCode.STORAGE_FAILED, self._broken[cluster], NO_BALLOT)
        if cluster in self._prepared:
            text = f"safekeeper {self._acceptor_id} was prepared for {cluster!r}, not configured: "
            return Reject(RejectCode.NOT_A_MEMBER, text + "run `walkeeper create` again", NO_BALLOT)
        known = ", ".join(sorted(self._open)) or "none"
        text = (
            f"safekeeper {self._acceptor_id} has no log of cluster {cluster!r} (it has: {known}); "
            "check --cluster, or run `walkeeper create`; if its disk was lost, `walkeeper replace`"
        )
        if gone := [each for each in self._dropped.tombstones.dropped if each.cluster == cluster]:
            text = f"{text}. `walkeeper logs drop` took {gone[-1].log_uuid.hex()} away"
        return Reject(RejectCode.UNKNOWN_LOG, text, NO_BALLOT)

    async def administer(self, ask: AdminRequest) -> Message:
        """Answer requests for creation and status; turn Refused and StorageError into a Reject."""
        match ask:
            case LogQuery(cluster):
                return self._state(cluster)
            case StatusRequest(cluster):
                return StatusResponse(json.dumps(self._status(cluster)).encode())
            case ReserveTimeline(cluster):
                found = self.hosted(cluster)
                return found if isinstance(found, Reject) else await found.timelines.reserve(ask)
            case SharedSlots(cluster):
                found = self.hosted(cluster)
                return found if isinstance(found, Reject) else await found.share_slots(ask)
            case DigestQuery(cluster):
                found = self.hosted(cluster)
                return found if isinstance(found, Reject) else await found.range_digest(ask)
            case PrepareLog():
                async with self._creating:
                    return await self._prepare(ask)
            case ConfigureLog():
                async with self._creating:
                    return await self._configure(ask)
            case DropLog():
                async with self._creating:
                    return await self._drop(ask)
            case JoinLog():
                async with self._creating:
                    return await self._join(ask)

    def _durable(self, cluster: str) -> Durable | None:
        if cluster in self._broken:
            raise Refused(self._broken[cluster])
        if cluster in self._open:
            return self._open[cluster].driver.acceptor.durable
        return self._prepared.get(cluster)

    def _state(self, cluster: str) -> LogState:
        return state_of(self._acceptor_id, self._durable(cluster))

    async def _drop(self, ask: DropLog) -> LogState:
        """Drop a log that nobody uses: bury it, close it, then remove its folder (M7)."""
        durable = self._durable(ask.cluster)
        is_here = durable is not None and durable.log_uuid == ask.log_uuid
        if durable is not None and not is_here:
            raise Refused(
                f"safekeeper {self._acceptor_id} has log {durable.log_uuid.hex()} under the name "
                f"{ask.cluster!r}, and not {ask.log_uuid.hex()}"
            )
        log = self._open.get(ask.cluster)
        if log is not None and (users := log.users()):
            raise Refused(f"safekeeper {self._acceptor_id}: {users}")
        ballot = NO_BALLOT if durable is None else durable.ballot
        buried = Tombstone(ask.cluster, ask.log_uuid, ballot, int(time()))
        await asyncio.to_thread(self._dropped.bury, buried)
        if is_here:
            await self._remove(buried)
            logger.info("dropped the log of cluster %s, %s", ask.cluster, ask.log_uuid.hex())
        return state_of(self._acceptor_id, None)

    async def _remove(self, buried: Tombstone) -> None:
        log = self._open.pop(buried.cluster, None)
        self._prepared.pop(buried.cluster, None)
        for task in self._tasks.pop(buried.cluster, ()):
            task.cancel()
        if log is not None:
            await log.close()
        disks = self._disks.pop(buried.cluster, ())

        def close_files() -> None:
            for disk in disks:
                disk.close()

        await asyncio.to_thread(self._dropped.remove, buried, close_files)

    async def _prepare(self, ask: PrepareLog) -> LogState:
        if self._dropped.tombstones.find(ask.log_uuid) is not None:
            raise Refused(
                f"log {ask.log_uuid.hex()} of {ask.cluster!r} was dropped on safekeeper "
                f"{self._acceptor_id}: drop it on the others too (`walkeeper logs drop`), then run "
                "`walkeeper create`"
            )
        existing = self._durable(ask.cluster)
        durable = prepared(existing, ask, acceptor_id=self._acceptor_id, incarnation=os.urandom(16))
        if durable is not existing:
            folder = self._folder(ask.cluster)
            await asyncio.to_thread(folder.save_control, durable)
            self._prepared[ask.cluster] = durable
            logger.info("prepared a log for cluster %s", ask.cluster)
        return self._state(ask.cluster)

    async def _configure(self, ask: ConfigureLog) -> LogState:
        existing = self._durable(ask.cluster)
        if existing is None:
            raise Refused(f"cluster {ask.cluster!r} was not prepared here: repeat the command")
        durable = configured(existing, ask.configuration)
        if durable is not existing:
            await self._begin(ask.cluster, durable)
        return self._state(ask.cluster)

    async def _join(self, ask: JoinLog) -> LogState:
        """Begin an empty log in the place of another member; a proposer fills it."""
        existing = self._durable(ask.cluster)
        if existing is None:
            raise Refused(f"cluster {ask.cluster!r} was not prepared here: repeat the command")
        durable = joined(existing, ask)
        if isinstance(durable, str):
            raise Refused(durable)
        if durable is not existing:
            await self._begin(ask.cluster, durable)
            logger.info("joined cluster %s; the log starts at %s", ask.cluster, ask.base_lsn)
        return self._state(ask.cluster)

    async def _begin(self, cluster: str, durable: Durable) -> None:
        """Make the first segment before the control file that promises it, and open the log."""
        folder = self._folder(cluster)
        await asyncio.to_thread(folder.create_wal, durable)
        await asyncio.to_thread(folder.save_control, durable)
        await self._open_one(cluster)
        self._prepared.pop(cluster, None)

    def _status(self, cluster: str) -> dict[str, object]:
        """Return this safekeeper's part of `walkeeper status --json`."""
        answer: dict[str, object] = {
            "id": self._acceptor_id,
            "version": program_version(),
            "clusters": sorted(self._open),
            "logs": self.clusters(),
            "free_bytes": self.space.free_bytes,
            "size_bytes": self.space.size_bytes,
            "clock_s": time(),
        }
        found = self.hosted(cluster)
        if isinstance(found, Reject):
            return {**answer, "error": found.text, "trouble": TROUBLES.get(found.code)}
        return {**answer, **log_status(found)}

    # For the PostgreSQL sessions

    def clusters(self) -> Sequence[str]:
        """Return every cluster with a log here, broken ones included."""
        return sorted({*self._open, *self._broken, *self._prepared})

    def logical_databases(self) -> Mapping[str, str]:
        """Return the database of each logical log that is served, or "" while it is unknown."""
        logs = ((name, self._open[name].readable.logical) for name in sorted(self._open))
        return {
            name: log.settings.database if log.settings is not None else ""
            for name, log in logs
            if log is not None
        }

    def open_log(self, cluster: str) -> ReadableLog:
        """Return the log of one of `clusters()`; raise Refused, with a reason, if it is broken."""
        found = self.hosted(cluster)
        if isinstance(found, Reject):
            raise Refused(found.text)
        return found.readable


def _new_slot_id() -> bytes:
    """Return the time, so that ids sort by it, and a random part."""
    return int(time()).to_bytes(4, "big") + os.urandom(SLOT_ID_BYTES - 4)


def _may_hold_log(folder: os.DirEntry[str]) -> bool:
    try:
        os.stat(os.path.join(folder.path, CONTROL))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # opening it will say why not
    return True
