"""One check of a data directory against the log (R23). A shell.

    check(files, where) -> Checked

Raises Misconfigured if the log is none of WAL. What cannot be read now is Unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from walkeeper_cli.restore import verdict as restoring
from walkeeper_cli.restore.archive_source import WalSource
from walkeeper_cli.standby_check.data_directory import DataDirectory, Files, NotReadable
from walkeeper_cli.standby_check.log_reader import LogReader
from walkeeper_common.addresses import Address
from walkeeper_common.ancestry import (
    AnotherBranch,
    Comparing,
    Log,
    SameBranch,
    Server,
    Side,
    Unknown,
    Verdict,
    compare,
    remedy,
)
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn

Read = Callable[[Lsn, Lsn], bytes | None]


@dataclass(frozen=True, slots=True)
class Where:
    """The log to compare with. `archive` opens the one of a system identifier."""

    safekeepers: tuple[Address, ...]
    cluster: str
    archive: Callable[[int], WalSource] | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """`server` and `log` are None if they could not be learned."""

    verdict: Verdict
    server: Server | None = None
    log: Log | None = None


def check(files: Files, where: Where, *, replayed_lsn: Lsn | None = None) -> Checked:
    """Block until the bytes are compared, a round of all safekeepers at most for the log."""
    try:
        server = DataDirectory(files, replayed_lsn=replayed_lsn)
    except (NotReadable, OSError) as error:
        return Checked(Unknown(str(error)))
    facts = server.facts
    archive = None if where.archive is None else where.archive(facts.system_id)
    with LogReader(where.safekeepers, where.cluster, archive) as reader:
        log = reader.ask()
        if isinstance(log, restoring.Unknown):
            return Checked(Unknown(log.text), facts)
        try:
            return Checked(judge(compare(facts, log), server.read, reader.read), facts, log)
        except restoring.Misconfigured:
            raise
        except WalkeeperError as error:  # a safekeeper or the archive, in the middle of a read
            return Checked(Unknown(str(error)), facts, log)


def judge(comparing: Comparing, read_server: Read, read_log: Read) -> Verdict:
    """Answer what it asks for, and return its verdict."""
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
    """Say what was found and what to do."""
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
