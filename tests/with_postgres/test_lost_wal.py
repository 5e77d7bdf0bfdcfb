"""A disk that has lost WAL: the scrub of a real safekeeper says so, and commits go on."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster
from tests.support.segment_files import with_another_byte
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres
MESSAGE = "SELECT pg_logical_emit_message(true, 'fill', repeat(md5(random()::text), 16384))"


def test_lost_wal_is_reported_while_commits_go_on(cluster: Cluster) -> None:
    for _ in range(8):
        cluster.primary.sql(MESSAGE)
    cluster.wait_all_equal()
    first = cluster.safekeepers[0]
    first.terminate()
    segment = sorted(p for p in cluster.wal_dir(1).iterdir() if len(p.name) == 24)[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0x10
    segment.write_bytes(data)
    first.start("--scrub-rate", "100MB")

    def reasons() -> dict[str, str]:
        return {each["code"]: each["text"] for each in cluster.status()["reasons"]}

    wait_until(lambda: "damaged" in reasons())
    assert segment.name in reasons()["damaged"] and cluster.status()["cluster"]["quorum"]
    wait_until(lambda: f"is damaged: segment {segment.name}" in first.output())
    cluster.primary.sql("SELECT txid_current()")  # commits go on
    second = cluster.status()["safekeepers"][1]
    assert second["damage"] is None


def test_lost_wal_comes_back_from_another_member_without_an_archive(cluster: Cluster) -> None:
    for _ in range(8):
        cluster.primary.sql(MESSAGE)
    cluster.wait_all_equal()
    first = cluster.safekeepers[0]
    first.terminate()
    segment = sorted(p for p in cluster.wal_dir(1).iterdir() if len(p.name) == 24)[1]
    sound = segment.read_bytes()
    data = bytearray(sound)
    data[len(data) // 2] ^= 0x10
    segment.write_bytes(data)
    first.start("--scrub-rate", "100MB", "--repair-from", cluster.addresses)
    wait_until(lambda: "from another member; it is read again" in first.output())
    assert segment.read_bytes() == sound
    wait_until(lambda: "the scrub finds no damage any more" in first.output())
    line = cluster.status()["safekeepers"][0]
    assert (line["damage"], line["repairs"]) == (None, 1)


def test_a_segment_that_differs_from_two_others_comes_back_though_its_records_are_sound(
    cluster: Cluster,
) -> None:
    """A record of one member has another byte and its right CRC. Two other members agree."""
    cluster.primary.sql("SELECT pg_logical_emit_message(true, 'note', 'the needle of the story')")
    for _ in range(8):
        cluster.primary.sql(MESSAGE)
    cluster.wait_all_equal()
    first = cluster.safekeepers[0]
    first.terminate()
    segments = sorted(p for p in cluster.wal_dir(1).iterdir() if len(p.name) == 24)
    segment = next(p for p in segments if b"the needle of the story" in p.read_bytes())
    sound = segment.read_bytes()
    segment.write_bytes(with_another_byte(sound, b"the needle of the story"))
    first.start("--scrub-rate", "100MB", "--repair-from", cluster.addresses)
    wait_until(lambda: "from another member; it is read again" in first.output())
    assert f"{segment.name}: its digest is not that of safekeeper 2, safekeeper 3" in first.output()
    assert segment.read_bytes() == sound
    wait_until(lambda: "the scrub finds no damage any more" in first.output())
    line = cluster.status()["safekeepers"][0]
    assert (line["damage"], line["repairs"], line["differences"]) == (None, 1, 0)
