"""The compiled stream of a primary against the shell, byte for byte, from any CopyData.

An input is a byte that chooses the acks, and then payloads of CopyData, each behind two bytes with
its size.

Promises: both send the same WAL to all members, and the same statuses to PostgreSQL. Both lose the
connection for the same reason, and the cores end in the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.mutation import havoc
from tests.support.copied_stream import ASKS, KEEPALIVE, StreamedLeader, steady_leader, xlog
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.postgres.pgwire import XLogData

HEAD_BYTES = XLogData.LAYOUT.size
BEGIN = CREATION_LSN + 100


def payloads_in(data: bytes) -> list[bytes]:
    """Return the payloads of an input; the last one may be short."""
    payloads, at = list[bytes](), 1
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        payloads.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return payloads


def packed(acks: int, *payloads: bytes) -> bytes:
    sized = (len(one).to_bytes(2, "big") + one for one in payloads)
    return bytes([acks]) + b"".join(sized)


def run(data: bytes) -> None:
    told = [_told(steady_leader(is_fast=is_fast), data) for is_fast in (True, False)]
    require(told[0] == told[1], "{} {}", *told)


def _told(leader: StreamedLeader, data: bytes) -> tuple[object, ...]:
    acks, payloads = data[0] if data else 0, payloads_in(data)
    half = len(payloads) // 2 if acks & 8 else len(payloads)
    for some in (payloads[:half], payloads[half:]):
        leader.socket.is_full = bool(acks & 16)
        leader.arrive(*some)
        end = leader.leading.core.members[0].next_lsn
        leader.settle()
        end = max(end, leader.leading.leader.window.end_lsn)
        for link in range(3):
            if acks & (1 << link) and not leader.shell.lost:
                leader.acknowledge(link, end)
        leader.settle()
        leader.socket.drain()
    return leader.all_facts(), leader.leading.state()


def _seeds() -> Iterable[bytes]:
    for acks in (0, 3, 7, 11, 19):
        for sizes in ((1,), (40, 60), (300, 7, 1, 1)):
            at, payloads = BEGIN, list[bytes]()
            for size in sizes:
                payloads.append(xlog(at, bytes([size % 251]) * size))
                at = at + size
            yield packed(acks, *payloads)
            yield packed(acks, KEEPALIVE, *payloads[:1], ASKS, *payloads[1:])


def repair(data: bytes, random: Random) -> bytes:
    """Let the WAL of each payload follow the one before, mostly."""
    at, payloads = BEGIN, list[bytes]()
    for payload in payloads_in(data):
        if len(payload) >= HEAD_BYTES and random.randrange(8):
            payload = xlog(at, payload[HEAD_BYTES:])
            at = at + len(payload) - HEAD_BYTES
        payloads.append(payload)
    return packed(data[0] if data else 0, *payloads)


PRIMARY = Target(
    name="fast_primary",
    about="the compiled stream of a primary against the shell",
    run=run,
    seeds=_seeds,
    bytes_max=2048,
    alter=havoc,
    repair=repair,
)
