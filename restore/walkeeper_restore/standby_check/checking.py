"""One check of a data directory against the log (R23). A shell.

    check(files, where) -> Checked

It raises Misconfigured if the log holds no WAL. If bytes cannot be read now, the verdict is
Unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from walkeeper_common.addresses import Address
from walkeeper_common.ancestry.ancestry_facts import (
    AnotherBranch,
    Comparing,
    Log,
    SameBranch,
    Server,
    Side,
    Unknown,
    Verdict,
    remedy,
)
from walkeeper_common.ancestry.branch_comparison import compare
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_restore import verdict as restoring
from walkeeper_restore.standby_check.archive_reader import ArchiveReader
from walkeeper_restore.standby_check.data_directory import DataDirectory, Files, NotReadable
from walkeeper_restore.standby_check.log_reader import LogReader
from walkeeper_restore.wal_source import ArchivedWal, WalSource

Read = Callable[[Lsn, Lsn], bytes | None]


class LogSource(Protocol):
    """A log for one check. `ask` returns what compare() needs of it, and `read` returns its WAL."""

    def __enter__(self) -> LogSource: ...
    def __exit__(self, *error: object) -> None: ...
    def ask(self) -> Log | restoring.Unknown: ...
    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None: ...


class LogPlace(Protocol):
    """The place of the log to compare with.

    `may_grow` is True if an unknown answer may become known later.
    """

    @property
    def cluster(self) -> str: ...
    @property
    def may_grow(self) -> bool: ...
    def open(self, server: Server) -> LogSource: ...


@dataclass(frozen=True, slots=True)
class Where:
    """A log on safekeepers; `archive` opens the archive of a system identifier, for older WAL."""

    safekeepers: tuple[Address, ...]
    cluster: str
    archive: Callable[[int], WalSource] | None = None
    may_grow: bool = True

    def open(self, server: Server) -> LogSource:
        archive = None if self.archive is None else self.archive(server.system_id)
        return LogReader(self.safekeepers, self.cluster, archive)


@dataclass(frozen=True, slots=True)
class ArchiveAlone:
    """A log in its archive, for the case that its safekeepers are lost."""

    source: ArchivedWal
    cluster: str
    may_grow: bool = False

    def open(self, server: Server) -> LogSource:
        return ArchiveReader(self.source.archive, server.segment_bytes)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check; `server` and `log` are None if they could not be read."""

    verdict: Verdict
    server: Server | None = None
    log: Log | None = None


def check(files: Files, where: LogPlace, *, replayed_lsn: Lsn | None = None) -> Checked:
    """Compare the server with the log and return the result; block until the bytes are compared.

    One round of requests to all safekeepers, at most, finds the log.
    """
    try:
        server = DataDirectory(files, replayed_lsn=replayed_lsn)
    except (NotReadable, OSError) as error:
        return Checked(Unknown(str(error)))
    facts, log = server.facts, None
    try:
        with where.open(facts) as reader:
            log = reader.ask()
            if isinstance(log, restoring.Unknown):
                return Checked(Unknown(log.text), facts)
            return Checked(judge(compare(facts, log), server.read, reader.read), facts, log)
    except restoring.Misconfigured:
        raise
    except WalkeeperError as error:  # a safekeeper or the archive, in the middle of a read
        return Checked(Unknown(str(error)), facts)


def judge(comparing: Comparing, read_server: Read, read_log: Read) -> Verdict:
    """Give the comparison the bytes that it asks for, and return its verdict."""
    answer: bytes | None = None
    while True:
        try:
            ask = comparing.send(answer)
        except StopIteration as done:
            verdict: Verdict = done.value
            return verdict
        read = read_server if ask.side is Side.SERVER else read_log
        answer = read(ask.begin_lsn, ask.end_lsn)


def explained(verdict: Verdict, cluster: str) -> str:
    """Return the verdict in words, with the remedy."""
    log = f"the log of cluster {cluster}"
    match verdict:
        case SameBranch(through_lsn, 0):
            return f"the server's WAL is {log}, compared up to {through_lsn}"
        case SameBranch(through_lsn, ahead_bytes):
            return (
                f"the server's WAL is {log} up to what is committed there, {through_lsn}, and goes "
                f"on for {ahead_bytes} bytes"
            )
        case AnotherBranch(text):
            return f"the server's WAL is not {log}: {text}; {remedy(verdict)}"
        case Unknown(text):
            return f"it cannot be known whether the server's WAL is {log}: {text}"
