"""Copies of a damaged segment on the disks of other members (--repair-from). Blocking; a shell.

    copy = agreed_copy(wanted, peers)     the bytes that all answering members have, or None
    peer_digest(wanted, address)          a member's id and the digest of its copy, or None

A peer answers with committed WAL alone, and committed WAL is the same on every member. So two
copies that differ are a second damage, and neither is taken. A member without that WAL, or with
damage of its own there, answers with a Reject and does not count.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_common.wire.range_digest import DigestQuery

logger = logging.getLogger("walkeeper.scrub")

TIMEOUT_S = 10.0


class OwnLog(NamedTuple):
    """The log that a peer must serve as well, and the member that asks."""

    cluster: str
    log_uuid: bytes
    acceptor_id: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The range, and the log that a peer must serve. This member asks itself nothing.

    `sha256` is the digest that a copy must have, or None if the records' CRCs decide."""

    cluster: str
    log_uuid: bytes
    acceptor_id: int
    begin_lsn: Lsn
    end_lsn: Lsn
    sha256: str | None = None

    @property
    def own(self) -> OwnLog:
        """The log, and this member."""
        return OwnLog(self.cluster, self.log_uuid, self.acceptor_id)

    def takes(self, copy: Buffer) -> bool:
        """Return False for a copy with another digest."""
        return self.sha256 in (None, hashlib.sha256(copy).hexdigest())


def agreed_copy(wanted: Wanted, peers: Sequence[Address]) -> bytes | None:
    """Return the copy that all answering peers have, or None if none answers or two differ.

    With a digest, only copies of that digest count."""
    copies: dict[bytes, bytes] = {}
    for address in peers:
        try:
            copy = _copy(wanted, address)
        except WalkeeperError as error:
            logger.warning("cluster %s: no copy for the repair: %s", wanted.cluster, error)
            continue
        if copy is not None and wanted.takes(copy):
            copies[hashlib.sha256(copy).digest()] = copy
    if len(copies) > 1:
        text = "members have different copies of %s to %s, and none is taken"
        logger.error(f"cluster %s: {text}", wanted.cluster, wanted.begin_lsn, wanted.end_lsn)
        return None
    return next(iter(copies.values()), None)


def peer_digest(wanted: Wanted, address: Address) -> tuple[int, str] | None:
    """Return a peer's id and its digest, or None if this is not another member of the log."""
    found = another_member(wanted.own, address, "scrub")
    if found is None:
        return None
    source, greeting = found
    try:
        log, begin_lsn, end_lsn = wanted.log_uuid, wanted.begin_lsn, wanted.end_lsn
        digest = source.digest(DigestQuery(wanted.cluster, log, begin_lsn, end_lsn))
        return greeting.acceptor_id, digest.hex()
    finally:
        source.close()


def _copy(wanted: Wanted, address: Address) -> bytes | None:
    """Return a peer's copy, or None if this is not another member of the log."""
    found = another_member(wanted.own, address, "scrub")
    if found is None:
        return None
    source, _ = found
    try:
        copy = bytearray(wanted.end_lsn - wanted.begin_lsn)
        for lsn, wal in source.read(wanted.begin_lsn, wanted.end_lsn):
            at = lsn - wanted.begin_lsn
            copy[at : at + len(wal)] = wal
        return bytes(copy)
    finally:
        source.close()


def another_member(
    own: OwnLog, address: Address, name: str
) -> tuple[Safekeeper, AcceptorGreeting] | None:
    """Return a connection to another member of the log, or None if the address is none.

    Raise Unreachable or Rejected."""
    source = Safekeeper(address, TIMEOUT_S)
    try:
        greeting = source.greet(own.cluster, name)
    except WalkeeperError:
        source.close()
        raise
    if greeting.acceptor_id != own.acceptor_id and greeting.log_uuid == own.log_uuid:
        return source, greeting
    source.close()
    if greeting.acceptor_id != own.acceptor_id:
        text = "cluster %s: %s serves another log of this name: mend --repair-from"
        logger.warning(text, own.cluster, shown_address(address))
    return None
