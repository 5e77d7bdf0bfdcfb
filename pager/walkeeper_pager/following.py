"""Follow the log, from one safekeeper after another, into received files. A shell; one thread.

    Following(pager, addresses, cluster, …).run(stop)      until stop is set

It uses START_REPLICATION PHYSICAL from the end of the files, like a standby. A safekeeper sends no
WAL beyond its commit_lsn, so received WAL is never truncated. The pager leaves a safekeeper for the
next one if it is lost, falls silent, lags or no longer has the WAL. At the end of a timeline it
follows the next timeline. WAL that no safekeeper keeps any more comes from the archive, if one is
named.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import timeline_file_name
from walkeeper_pager.pager import Pager
from walkeeper_wal.sources.archive_names import archived_file
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.safekeeper_link import SafekeeperLink, ServedWal, Unavailable
from walkeeper_wal.sources.segment_timelines import Stretch, parse_history
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import LOGICAL_LOG, HistoryError

logger = logging.getLogger("walkeeper.pager")

RETRY_S = 1.0
# After this time without WAL, the pager asks the other safekeepers whether they have more.
QUIET_S = 5.0
NAME = "walkeeper pager"  # shown in the status of the safekeeper that it follows
REPORT_S = 1.0


class Foreign(HistoryError):
    """The log is not this pager's, so that a retry will not help."""


@dataclass(slots=True)
class Following:
    """Follow a log into the pager's files. `on_wal` is called when WAL has been written."""

    pager: Pager
    addresses: list[str]
    cluster: str
    on_wal: Callable[[], None]
    archive: WalFiles | None = None
    source: str = ""
    """The address that WAL comes from now; empty while there is none."""
    problem: str = ""
    """The reason why no WAL comes; empty while it comes."""
    _turn: int = 0
    _reasons: dict[str, str] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Block until `stop` is set; raise Foreign for a log that is not this pager's."""
        while not stop.is_set():
            address = self.addresses[self._turn % len(self.addresses)]
            try:
                self._follow(address, stop)
            except Foreign:
                raise
            except HistoryError as error:
                self._left(address, str(error))
            self.source = ""
            self._turn += 1
            if len(self._reasons) >= len(self.addresses):
                self.problem = "; ".join(self._reasons.values())
                self._from_archive()
                stop.wait(RETRY_S)

    def _left(self, address: str, reason: str) -> None:
        if self._reasons.get(address) != reason:
            logger.warning("%s", reason)
        self._reasons[address] = reason

    def _follow(self, address: str, stop: threading.Event) -> None:
        """Follow one safekeeper on one connection, timeline by timeline."""
        link = SafekeeperLink.open(address, self.cluster, application_name=NAME)
        try:
            if link.is_logical():
                raise Foreign(f"{address}: {LOGICAL_LOG}")
            while not stop.is_set():
                state = link.state()
                self._check(address, state)
                begin = self.pager.start_lsn
                if begin < state.oldest_lsn:
                    raise Unavailable(
                        f"{address}: WAL at {Lsn(begin)} is no longer kept, the oldest is at "
                        f"{Lsn(state.oldest_lsn)}: name an archive that has it (--archive), or "
                        "begin with a newer base backup and an empty --data-dir"
                    )
                timeline = self._timeline_at(link, state, begin)
                self._stream(link, address, self.pager.start_lsn, timeline, stop)
        finally:
            link.close()

    def _check(self, address: str, state: ServedWal) -> None:
        pager = self.pager
        if state.system_id != pager.base.system_id:
            raise Foreign(
                f"{address} has the log of system {state.system_id}; {pager.base.shown} is a base "
                f"backup of system {pager.base.system_id}"
            )
        if state.segment_bytes != pager.wal.segment_bytes:
            raise Foreign(
                f"{address} has segments of {state.segment_bytes} bytes, and this pager's have "
                f"{pager.wal.segment_bytes}: name a base backup of that server, and an empty "
                "--data-dir"
            )
        ours = pager.wal.timeline
        if ours is not None and state.timeline < ours:
            raise Unavailable(
                f"{address} is on timeline {state.timeline} still, and this pager is on {ours}"
            )
        is_behind = state.commit_lsn < pager.start_lsn and pager.wal.end_lsn is not None
        if is_behind and state.timeline == ours:
            raise Unavailable(
                f"{address} has the log up to {Lsn(state.commit_lsn)}, less than this pager"
            )

    def _timeline_at(self, link: SafekeeperLink, state: ServedWal, lsn: int) -> int:
        """Return the timeline of the log from `lsn` on, and switch the files to it."""
        path: tuple[Stretch, ...] = (Stretch(1, 1 << 64),)
        history = b""
        if state.timeline > 1:
            history = link.history(state.timeline)
            name = timeline_file_name(state.timeline)
            path = parse_history(history, state.timeline, name)
        ours = self.pager.wal.timeline
        lsn = self._leave(path, lsn, link.address, state.timeline)
        timeline = next(each.timeline for each in path if lsn < each.end_lsn)
        if timeline not in (1, ours):
            own = history if timeline == state.timeline else link.history(timeline)
            self.pager.wal.switch(timeline, own)
        return timeline

    def _leave(self, path: tuple[Stretch, ...], lsn: int, whose: str, timeline: int) -> int:
        """Cut off received WAL that the log has left, and return the LSN to go on from.

        Raise Foreign if it was applied already.
        """
        pager, ours = self.pager, self.pager.wal.timeline
        if ours is None:
            return lsn
        left = next((each.end_lsn for each in path if each.timeline == ours), -1)
        if left < pager.applied_lsn:
            where = f"left {ours} at {Lsn(left)}" if left >= 0 else f"has not been on {ours}"
            raise Foreign(
                f"{whose}: the log is on timeline {timeline} now, and {where}; here it was applied "
                f"up to {Lsn(pager.applied_lsn)}"
            )
        if left >= lsn:
            return lsn
        # The lost primary never finished its last record: the new timeline begins before it.
        pager.wal.cut(left)
        return left

    def _stream(
        self, link: SafekeeperLink, address: str, begin: int, timeline: int, stop: threading.Event
    ) -> None:
        """Write the stream to the files until its timeline ends; raise Unavailable if it breaks."""
        wal, at = self.pager.wal, begin
        link.start_stream(begin, timeline)
        logger.info("following %s from %s on timeline %d", address, Lsn(begin), timeline)
        self.source, self.problem = address, ""
        quiet_since_s = reported_s = time.monotonic()
        while not stop.is_set():
            data = link.next_of_stream(at, timeout_s=REPORT_S)
            if data is None:
                return
            now_s = time.monotonic()
            if len(data):
                wal.write(timeline, at, data)
                at += len(data)
                self._reasons.clear()
                quiet_since_s = now_s
                self.on_wal()
            elif now_s - quiet_since_s > QUIET_S:
                self._look_around(address, at)
                quiet_since_s = now_s
            if now_s - reported_s >= REPORT_S:
                reported_s = now_s
                link.report(at, wal.synced_lsn, self.pager.applied_lsn)

    def _look_around(self, address: str, at: int) -> None:
        """Raise Unavailable if another safekeeper has more; called after a while without WAL."""
        for other in self.addresses:
            if other == address:
                continue
            try:
                link = SafekeeperLink.open(other, self.cluster, application_name=NAME)
            except Unavailable:
                continue
            try:
                ahead = link.state().commit_lsn
            except Unavailable:
                continue
            finally:
                link.close()
            if ahead > at:
                self._turn = self.addresses.index(other) - 1
                raise Unavailable(f"{address} sent no WAL after {Lsn(at)}, and {other} has more")

    def _from_archive(self) -> None:
        """Take whole segments from the archive, as far as they go."""
        if self.archive is None:
            return
        wal, begin = self.pager.wal, self.pager.start_lsn
        try:
            plan = make_plan(self.archive, start_lsn=begin)
            self._leave(plan.path, begin, self.archive.shown(""), plan.timeline)
            for segment in plan.segments:
                at = self.pager.start_lsn
                if segment.is_partial or segment.first_lsn != at // wal.segment_bytes * (
                    wal.segment_bytes
                ):
                    break
                data = self.archive.read(segment.path)
                if len(data) != wal.segment_bytes:
                    break
                if segment.timeline not in (1, wal.timeline):
                    wal.switch(segment.timeline, self._archived_history(segment.timeline))
                wal.write(segment.timeline, at, data[at - segment.first_lsn :].tobytes())
                self.on_wal()
                logger.info("%s from the archive", segment.name)
        except HistoryError as error:
            self._left("archive", str(error))

    def _archived_history(self, timeline: int) -> bytes:
        assert self.archive is not None, f"{timeline=}"
        for path, size in self.archive.list_files():
            file = archived_file(path, size)
            if file is not None and file.segment is None and file.timeline == timeline:
                return self.archive.read(path).tobytes()
        raise HistoryError(f"{self.archive.shown('')}: no {timeline_file_name(timeline)} in it")
