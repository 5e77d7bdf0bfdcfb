"""The log that a vote quorum of safekeepers shows. WAL comes from them or an archive. A shell.

    with LogReader(...) as reader: log = reader.ask(); reader.read(begin_lsn, end_lsn)

Contract: it fences no proposer and promises nothing. It reads only committed WAL (R13).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

from walkeeper_common.addresses import Address
from walkeeper_common.ancestry.ancestry_facts import Log
from walkeeper_common.errors import Unreachable
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.shell.safekeeper_links.committed_wal import Rejected
from walkeeper_common.timelines import Timelines
from walkeeper_restore.question_round import Round
from walkeeper_restore.verdict import (
    Unknown,
    configuration_of,
    lacking,
    log_order,
    members_of,
)
from walkeeper_restore.wal_source import WalSource


class LogReader:
    """One look at the log, on the safekeepers at `addresses` and in `archive`, if there is one."""

    def __init__(
        self, addresses: Sequence[Address], cluster: str, archive: WalSource | None = None
    ) -> None:
        self._round = Round(addresses, cluster, None)  # compare() looks at the system identifier
        self._archive = archive
        self._log: Log | None = None
        self._fetched: tuple[str, bytes | None] = ("", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._round.close()

    def ask(self) -> Log | Unknown:
        """Return the log, or Unknown with the reason; raise Misconfigured if it holds no WAL."""
        for _ in self._round.greeted():
            found = self._known()
            if isinstance(found, Log):
                self._log = found
                return found
        return self._round.with_errors(self._known_not())

    def _known(self) -> Log | Unknown:
        greetings = self._round.greetings
        configuration = configuration_of(greetings)
        if configuration is None:
            return Unknown("no safekeeper answered with a log")
        members = members_of(greetings, configuration)
        text = lacking(members, configuration)
        if text is not None:
            return Unknown(text)
        donor = max(members.values(), key=log_order)
        creation_lsn = donor.history[0].start_lsn
        kept_lsn = min(member.oldest_lsn for member in members.values())
        return Log(
            system_id=configuration.system_id,
            segment_bytes=configuration.segment_bytes,
            history=donor.history,
            oldest_lsn=creation_lsn if self._archive is not None else max(kept_lsn, creation_lsn),
            end_lsn=max(member.commit_lsn for member in members.values()),
            record_lsn=donor.record_lsn,
        )

    def _known_not(self) -> Unknown:
        found = self._known()
        return found if isinstance(found, Unknown) else Unknown("no safekeeper answered in time")

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None:
        """Return committed WAL, or None if neither a safekeeper nor the archive keeps it.

        Raise Unreachable if a safekeeper has it and it cannot be read now.
        """
        errors = []
        for place, greeting in self._round.greetings.items():
            if greeting.oldest_lsn <= begin_lsn and end_lsn <= greeting.commit_lsn:
                try:
                    return self._read_from(place, begin_lsn, end_lsn)
                except (Unreachable, Rejected) as error:
                    errors.append(str(error))
        archived = self._from_archive(begin_lsn, end_lsn)
        if archived is None and errors:
            raise Unreachable("; ".join(errors))
        return archived

    def _read_from(self, place: int, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        wal = bytearray(end_lsn - begin_lsn)
        for lsn, part in self._round.connections[place].read(begin_lsn, end_lsn):
            wal[lsn - begin_lsn : lsn - begin_lsn + len(part)] = part
        return bytes(wal)

    def _from_archive(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None:
        """Return [begin_lsn, end_lsn) from the archive, or None if a segment of it is missing.

        The range lies in one segment, or in a record that begins in one.
        """
        log = self._log
        if self._archive is None or log is None:
            return None
        parts = []
        while begin_lsn < end_lsn:
            segment_lsn = begin_lsn.round_down(log.segment_bytes)
            until_lsn = min(end_lsn, segment_lsn + log.segment_bytes)
            timeline = Timelines(log.history).shown_by(begin_lsn, log.segment_bytes)
            segment = self._segment(segment_name(timeline, segment_lsn, log.segment_bytes))
            if segment is None:
                return None
            parts.append(segment[begin_lsn - segment_lsn : until_lsn - segment_lsn])
            begin_lsn = until_lsn
        return b"".join(parts)

    def _segment(self, name: str) -> bytes | None:
        assert self._archive is not None
        if self._fetched[0] != name:
            import tempfile  # only an archive needs it

            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, name)
                content = None
                if self._archive.fetch(name, path):
                    with open(path, "rb") as file:
                        content = file.read()
            self._fetched = name, content
        return self._fetched[1]
