"""Readers of a member that does not hold old WAL get it from members that do (M8)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.raw_client import RawClient, close_all_clients, errors
from tests.support.waiting import wait_until
from walkeeper_common.lsn import Lsn, parse_segment_name

pytestmark = pytest.mark.postgres


def test_a_member_serves_old_wal_that_other_members_hold(cluster: Cluster) -> None:
    """Its own old segments are gone, as retention removes them and as a newcomer lacks them."""
    for _ in range(4):
        cluster.primary.sql("SELECT pg_logical_emit_message(false, 'fill', 'wal')")
        cluster.primary.sql("SELECT pg_switch_wal()")
    end_lsn = Lsn(lsn_of(cluster.wait_all_equal()))
    segments = sorted(p for p in cluster.wal_dir(1).iterdir() if len(p.name) == 24)
    held = b"".join(path.read_bytes() for path in segments)
    _, first_lsn = parse_segment_name(segments[0].name, len(held) // len(segments))
    member, port = cluster.safekeepers[0], cluster.ports[0]
    member.terminate()
    for segment in segments[:2]:
        segment.unlink()
    member.start()
    (text,) = asyncio.run(_refused(port, first_lsn))
    assert "has already been removed" in text
    member.terminate()
    member.start("--repair-from", cluster.addresses, "--fill-rate", "0")
    wal = asyncio.run(streamed(port, first_lsn, end_lsn - first_lsn))
    assert wal == held[: len(wal)]
    wait_until(lambda: f"reading WAL from {first_lsn} on at safekeeper at" in member.output())
    lacking = "under-replicated: safekeeper 1 lacks 2,097,152 bytes"
    wait_until(lambda: lacking in cluster.command("status"))
    member.terminate()
    member.start("--repair-from", cluster.addresses)
    wait_until(lambda: all(segment.exists() for segment in segments[:2]))
    copied = b"".join(path.read_bytes() for path in segments[:2])
    assert copied == held[: len(copied)]
    wait_until(lambda: "under-replicated" not in cluster.command("status"))


async def streamed(port: int, begin_lsn: Lsn, size: int) -> bytes:
    """Return so much WAL from there on as a PostgreSQL client gets it."""
    try:
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {begin_lsn}")
        return await client.wal(size)
    finally:
        await close_all_clients()


async def _refused(port: int, begin_lsn: Lsn) -> list[str]:
    try:
        client = await RawClient.connect(port)
        answer = await client.query(f"START_REPLICATION {begin_lsn}")
        return [error["M"] for error in errors(answer)]
    finally:
        await close_all_clients()
