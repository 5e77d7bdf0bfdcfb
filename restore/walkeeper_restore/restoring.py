"""One request of PostgreSQL's: ask all safekeepers at once until the answer is known. A shell.

    Restore(…).run(name, path) -> "found" | "absent"        or raises, if the answer stays unknown

Every round asks all safekeepers (question_round.py), and `verdict` decides. If the answer is not
known, the next round asks again. A standby repeats this without limit, any other server for
`wait_s`. Every 10 s the server's log gets the reason. If there is an archive, no file is absent
before the archive has answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, Unreachable, WalkeeperError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.shell.safekeeper_links.committed_wal import Rejected
from walkeeper_restore import prefetching, restored_server, spool
from walkeeper_restore.file_placement import Orphaned, placing, remove_leftovers
from walkeeper_restore.guard import say
from walkeeper_restore.lost_wal import answer_to_lost_wal
from walkeeper_restore.question_round import ROUND_TIMEOUT_S, Round, asked_at_once
from walkeeper_restore.repeated_requests import until_known
from walkeeper_restore.restored_server import NotLearned
from walkeeper_restore.safekeeper_files import fetch
from walkeeper_restore.standby_check import placeholders, proof
from walkeeper_restore.verdict import (
    Absent,
    Gone,
    Misconfigured,
    Part,
    Unknown,
    Verdict,
    Whole,
    configuration_of,
    judge_segment,
    lacking,
    members_of,
)
from walkeeper_restore.wal_source import WalSource

WAL_FILE = re.compile(r"[0-9A-F]{24}|[0-9A-F]{8}\.history")


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked command line. `prefetch` is the number of segments to fetch ahead."""

    safekeepers: tuple[Address, ...]
    cluster: str
    wait_s: float
    partial: bool
    min_lsn: Lsn = ZERO_LSN
    prefetch: int = 0
    archive: WalSource | None = None


class Restore:
    """One request; `options` is the command line without %f and %p."""

    def __init__(self, settings: Settings, options: Sequence[str]) -> None:
        self._settings, self._options = settings, options
        self._key = spool.key_of(options)
        self._standby = restored_server.is_standby()
        self._system_id = spool.system_id()
        self._reach_lsn: Lsn | None = None

    def run(self, name: str, path: str) -> str:
        """Return `found` or `absent`; block until the answer is known.

        Raise Refused after `wait_s`, unless the server is a standby, and for lost WAL. Raise
        Misconfigured for a wrong option, and Orphaned if the server is gone.
        """
        if not WAL_FILE.fullmatch(name):
            raise Misconfigured(f"{name!r} is not the name of a WAL file")
        ask = self._history if name.endswith(".history") else self._segment
        remove_leftovers(path)
        if placeholders.remove_stale(name):
            say(f"removed the placeholder {name}: this server was not promoted")
        if proof.is_owed(self._key):
            self._prove(name)
        return until_known(name, self._settings.wait_s, lambda: ask(name, path))

    def _prove(self, name: str) -> None:
        """Prove the server's branch at each start of it (R23). Raise Refused for another branch."""
        from walkeeper_restore.standby_check.checking import Where
        from walkeeper_restore.standby_check.restored_standby import prove

        settings = self._settings
        source = settings.archive
        archive = None if source is None else lambda _: source
        where = Where(settings.safekeepers, settings.cluster, archive)
        prove(where, self._key, name=name, wait_s=settings.wait_s)

    def _round(self) -> Round:
        return Round(self._settings.safekeepers, self._settings.cluster, self._system_id)

    # Segments

    def _segment(self, name: str, path: str) -> str | Unknown:
        round_ = self._round()
        try:
            verdict = self._judged(name, round_)
            match verdict:
                case Whole():
                    return self._whole(name, path, verdict, round_)
                case Part():
                    return self._part(name, path, verdict, round_)
                case _ if self._from_archive(name, path):
                    return "found"
                case Absent():
                    return self._absent(path)
                case Gone():
                    return self._gone(name, path, verdict)
                case Unknown():
                    self._reach_lsn = verdict.reach_lsn or self._reach_lsn
                    return verdict
        except (Unreachable, Rejected, _ArchiveUnknown, NotLearned) as error:
            return Unknown(str(error))
        finally:
            round_.close()

    def _judged(self, name: str, round_: Round) -> Verdict:
        """Return a verdict once it is final, or Unknown after every safekeeper had its time."""
        verdict: Verdict = Unknown("no safekeeper answered")
        for _ in round_.greeted():
            verdict = judge_segment(
                name,
                round_.greetings,
                reach_lsn=self._reach_lsn,
                min_lsn=self._settings.min_lsn,
            )
            if not isinstance(verdict, Unknown):
                return verdict
        return round_.with_errors(verdict)

    def _whole(self, name: str, path: str, found: Whole, round_: Round) -> str:
        source = self._fetch(path, found, round_, found.end_lsn - found.begin_lsn)
        if self._settings.prefetch and (self._standby or restored_server.is_recovering()):
            spool.remove(path)
            connection, log = round_.connections[source], round_.greetings[source]
            ahead = self._settings.prefetch
            prefetching.start(self._options, path, name, connection, log, ahead)
        return "found"

    def _fetch(self, path: str, found: Whole | Part, round_: Round, size: int) -> int:
        """Fetch from one source after another until one succeeds; return its number."""
        for last, place in enumerate(found.sources, 1 - len(found.sources)):
            try:
                with placing(path) as temporary:
                    source = round_.connections[place]
                    fetch(source, found.begin_lsn, found.end_lsn, temporary, size)
                return place
            except (Unreachable, Rejected):
                if last == 0:
                    raise
        raise AssertionError(f"{found=} has no source")

    def _part(self, name: str, path: str, found: Part, round_: Round) -> str:
        spool.remove(path)
        if not self._settings.partial:
            return "absent"
        if restored_server.setting("archive_mode") == "always":
            text = (
                f"{name} is committed up to {found.end_lsn} only, and this server has "
                "archive_mode = always: it would archive the padded part as a whole segment. "
            )
            if not self._standby:
                raise Misconfigured(text + "Set archive_mode = on, or add --no-partial")
            say(text + "`restore` leaves it out; stream it, and see --min-lsn before you promote")
            return "absent"
        self._fetch(path, found, round_, found.segment_bytes)
        return "found"

    def _absent(self, path: str) -> str:
        spool.remove(path)
        return "absent"

    def _gone(self, name: str, path: str, found: Gone) -> str | Unknown:
        spool.remove(path)
        return answer_to_lost_wal(name, found.text, "--archive")

    # Histories

    def _history(self, name: str, path: str) -> str | Unknown:
        """Return `found` if a source has it, and `absent` if a vote quorum of members lacks it."""
        from walkeeper_restore.safekeeper_histories import timeline_history

        spool.remove(path)
        timeline, settings, round_ = int(name.partition(".")[0], 16), self._settings, self._round()
        without: set[int] = set()

        def ask(address: Address) -> bytes | None:
            return timeline_history(address, settings.cluster, timeline, ROUND_TIMEOUT_S)

        try:
            for place, answer in asked_at_once(settings.safekeepers, ask):
                if isinstance(answer, bytes):
                    with placing(path) as temporary, open(temporary, "wb") as file:
                        file.write(answer)
                    return "found"
                if answer is None:
                    without.add(place)
                else:
                    round_.errors[place] = answer
            if self._from_archive(name, path):
                return "found"
            for _ in round_.greeted():
                pass
            return self._history_is_absent(without, round_)
        except _ArchiveUnknown as error:
            return Unknown(str(error))
        finally:
            round_.close()

    def _history_is_absent(self, without: set[int], round_: Round) -> str | Unknown:
        counted = {place: g for place, g in round_.greetings.items() if place in without}
        configuration = configuration_of(round_.greetings)
        if configuration is None:
            return round_.with_errors(Unknown("no safekeeper answered with a log"))
        missing = lacking(members_of(counted, configuration), configuration)
        return "absent" if missing is None else round_.with_errors(Unknown(missing))

    def _from_archive(self, name: str, path: str) -> bool:
        archive = self._settings.archive
        if archive is None:
            return False
        try:
            with placing(path) as temporary:
                if not archive.fetch(name, temporary):
                    raise _NotArchived
            return True
        except _NotArchived:
            return False
        except (Orphaned, Refused, Misconfigured, ImportError):
            raise
        except Exception as error:
            raise _ArchiveUnknown(f"the archive: {error}") from error


class _NotArchived(Exception):
    """Leaves `placing` without a file."""


class _ArchiveUnknown(WalkeeperError):
    """The archive could not answer."""
