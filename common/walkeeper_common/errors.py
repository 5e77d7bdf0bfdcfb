"""Every exception this project raises. The class tells the caller what to do, never the text.

    WalkeeperError
      RemoteProtocolError   the peer broke the protocol: close this connection
      Refused               the peer may not do what it asks; the text says why and what to do
        WalRemoved          the WAL asked for is no longer kept here
        LogClosed           the log takes no more WAL, for good: end the daemon, never start again
      Unreachable           no safekeeper answered: ask another one, or ask again
      Deposed               a greater ballot exists: an elected proposer stops for good
      StorageError          our disk failed: acknowledge nothing from here on, reads may go on
        CorruptWal          bytes on our disk are not what was made durable: no vote, no donor
        NoSpace             a segment could not be allocated: refuse appends until it can

A broken invariant of our own is an AssertionError and stops the process; entry points refuse
to start under `python -O`, which would remove the checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from walkeeper_common.lsn import Lsn


class WalkeeperError(Exception):
    """The base: catch it only where the answer to a user or a peer is given."""

    exit_code: ClassVar[int] = 1  # the daemon that the error ends has this one


class RemoteProtocolError(WalkeeperError):
    """Close the connection; the peer must reconnect and greet again."""


class Refused(WalkeeperError):
    """The request is understood and turned down; asking again unchanged will not help."""


class WalRemoved(Refused):
    """`lsn` is below the oldest WAL kept here."""

    def __init__(self, lsn: Lsn, oldest_lsn: Lsn) -> None:
        super().__init__(f"WAL at {lsn} is no longer kept here; the oldest kept is at {oldest_lsn}")
        self.lsn, self.oldest_lsn = lsn, oldest_lsn


class LogClosed(Refused):
    """`walkeeper logs close` has ended the log. The systemd unit names this exit code."""

    exit_code = 3


class Unreachable(WalkeeperError):
    """A safekeeper did not answer in time, or not in its protocol. The text names its address."""


class Deposed(WalkeeperError):
    """A greater ballot was seen by an elected proposer. Final: never campaign again."""


class StorageError(WalkeeperError):
    """A write or an fsync failed. Final for this log on this safekeeper; never retried."""


class CorruptWal(StorageError):
    """Bytes that were made durable are gone or changed; the text names file and LSN."""


class NoSpace(StorageError):
    """ENOSPC or EDQUOT while allocating, or EMFILE or ENFILE before anything is written.

    It is not final: the safekeeper refuses appends until there is space.
    """
