"""The archive as the only source of `walkeeper restore`, when the safekeepers are lost.

`ArchiveAlone` is for the day on which no quorum of safekeepers is left. It finds the archived WAL,
up to the end of the last tail.
"""

from __future__ import annotations

import os
import re

from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.lsn import SEGMENT_NAME, Lsn, parse_segment_name
from walkeeper_restore import restored_server
from walkeeper_restore.file_placement import Orphaned, placing, remove_leftovers
from walkeeper_restore.guard import say
from walkeeper_restore.lost_wal import answer_to_lost_wal
from walkeeper_restore.repeated_requests import until_known
from walkeeper_restore.standby_check import placeholders, proof
from walkeeper_restore.verdict import Misconfigured, Unknown
from walkeeper_restore.wal_source import ArchivedWal, segment_bytes_here

OTHER_SOURCE = "--safekeepers"
HISTORY_NAME = re.compile(r"[0-9A-F]{8}\.history")


class _NotThere(Exception):
    """Leaves `placing` without a file."""


class ArchiveAlone:
    """One request to an archive without safekeepers."""

    def __init__(self, source: ArchivedWal, key: str, partial: bool, min_lsn: Lsn) -> None:
        """Take `key`, which stands for the options of the command line (spool.key_of)."""
        self._source, self._partial, self._min_lsn = source, partial, min_lsn
        self._key = key

    def run(self, name: str, path: str, wait_s: float) -> str:
        """Return `found` or `absent`; block until the archive has answered.

        Raise Refused if WAL is lost or not known within `wait_s`, and Misconfigured for a wrong
        option. Raise Orphaned if the server is gone.
        """
        if not SEGMENT_NAME.fullmatch(name) and not HISTORY_NAME.fullmatch(name):
            raise Misconfigured(f"{name!r} is not the name of a WAL file")
        remove_leftovers(path)
        if placeholders.remove_stale(name):
            say(f"removed the placeholder {name}: this server was not promoted")
        if proof.is_owed(self._key):
            from walkeeper_restore.standby_check import checking
            from walkeeper_restore.standby_check.restored_standby import prove

            where = checking.ArchiveAlone(self._source, self._source.cluster)
            prove(where, self._key, name=name, wait_s=wait_s)
        return until_known(name, wait_s, lambda: self._ask(name, path))

    def _ask(self, name: str, path: str) -> str | Unknown:
        try:
            return self._asked(name, path)
        except (Refused, Orphaned, Misconfigured):
            raise
        except WalkeeperError as error:
            return Unknown(f"the archive: {error}")

    def _asked(self, name: str, path: str) -> str | Unknown:
        try:
            with placing(path) as temporary:
                if not self._source.fetch(name, temporary):
                    raise _NotThere
            return "found"
        except _NotThere:
            return self._no_history(name) if name.endswith(".history") else self._tail(name, path)

    def _no_history(self, name: str) -> str | Unknown:
        from walkeeper_archive.timeline_extent import lacks_history

        if not lacks_history(self._source.archive, int(name.partition(".")[0], 16)):
            return "absent"
        return answer_to_lost_wal(name, "the archive goes on after that promotion", OTHER_SOURCE)

    def _tail(self, name: str, path: str) -> str | Unknown:
        end_lsn = _place_tail(self._source, name, path) if self._partial else None
        refusal: str | Unknown | None = "not known yet"
        try:
            refusal = self._refusal(name, end_lsn)
        finally:
            if refusal is not None and end_lsn is not None:
                os.unlink(path)
        if refusal is not None:
            return refusal
        if end_lsn is None:
            if not restored_server.is_standby():  # a standby asks again every few seconds
                self._source.check_has_wal()
            return "absent"
        say(f"the archive ends at {end_lsn}; what was committed later is not in it")
        return "found"

    def _refusal(self, name: str, tail_lsn: Lsn | None) -> str | Unknown | None:
        """Return None if the log may end with this tail or, without one, before this segment."""
        from walkeeper_archive.layout import WalFile
        from walkeeper_archive.timeline_extent import extent_of

        archive, segment_bytes = self._source.archive, segment_bytes_here()
        timeline, begin_lsn = parse_segment_name(name, segment_bytes)
        reached_lsn, end_lsn = tail_lsn or begin_lsn, begin_lsn + segment_bytes
        extent = extent_of(archive, timeline, name, segment_bytes)
        wanted_lsn = min(extent.end_lsn, end_lsn)
        if not self._partial and wanted_lsn < end_lsn:
            wanted_lsn = begin_lsn
        if max(reached_lsn, extent.begin_lsn) < wanted_lsn:
            file, newest = WalFile(timeline, name), archive.newest_partial(name)
            if archive.receipt(file) or (newest and newest.end_lsn > reached_lsn and self._partial):
                return Unknown(f"{name} was archived meanwhile")
            why = f"the archive goes on to {extent.end_lsn} on timeline {timeline}: pruned, or lost"
            return answer_to_lost_wal(name, why, OTHER_SOURCE)
        if reached_lsn < self._min_lsn:
            return Unknown(f"the archive ends at {reached_lsn}, below --min-lsn {self._min_lsn}")
        return None


def _place_tail(source: ArchivedWal, name: str, path: str) -> Lsn | None:
    """Place the tail of this segment and return its end, or None if there is no tail."""
    try:
        with placing(path) as temporary:
            end_lsn = source.fetch_tail(name, temporary, segment_bytes_here())
            if end_lsn is None:
                raise _NotThere
            if restored_server.setting("archive_mode") == "always":
                raise Misconfigured(
                    f"{name} is archived up to {end_lsn} only, and this server has archive_mode = "
                    "always: it would archive the padded part as a whole segment. Set "
                    "archive_mode = on, or add --no-partial"
                )
        return end_lsn
    except _NotThere:
        return None
