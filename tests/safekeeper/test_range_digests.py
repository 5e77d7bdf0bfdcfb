"""Copies of a segment are compared by digest: which one is wrong, and when nobody knows."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.safekeeper.test_segment_repair import Damaged, flipped
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.range_digest import RANGE_BYTES_MAX, DigestQuery
from walkeeper_safekeeper.archiving import segment_repair
from walkeeper_safekeeper.archiving.member_copies import Wanted
from walkeeper_safekeeper.archiving.range_digests import (
    LOST,
    Comparison,
    CopyDigests,
    digest_of,
    judge,
)
from walkeeper_safekeeper.archiving.segment_repair import MEMBER


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, Comparison()),
        ({"1": "a", "2": "a"}, Comparison()),
        ({"1": "b"}, Comparison(("1",))),
        ({"1": "b", "2": "c"}, Comparison(("1", "2"))),
        ({"1": "a", "2": "b"}, Comparison(("2",))),
        ({"1": "b", "2": "b"}, Comparison(("1", "2"), "b")),
        ({"1": "a", "2": "b", "3": "b"}, Comparison(("2", "3"))),
        ({"1": "b", "2": "b", "3": "c"}, Comparison(("1", "2", "3"), "b")),
    ],
)
def test_ours_is_wrong_if_two_others_agree_and_are_more(
    others: dict[str, str], expected: Comparison
) -> None:
    assert judge("a", others) == expected


def test_at_most_one_digest_is_right() -> None:
    """Five copies, whatever they are, find no two right digests."""
    for copies in itertools.product("abc", repeat=5):
        right = {
            judge(own, {str(n): d for n, d in enumerate(copies) if n != number}).right
            for number, own in enumerate(copies)
        } - {None}
        assert len(right) <= 1, copies


def test_a_digest_is_that_of_the_bytes_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = Damaged()
    store, begin_lsn = damaged.store, damaged.begin_lsn
    end_lsn = Lsn(begin_lsn + store.segment_bytes)
    monkeypatch.setattr("walkeeper_safekeeper.archiving.range_digests.PIECE_BYTES", 1000)

    async def story() -> str:
        reader = WorkerThread("reader", lambda defect: None)
        try:
            return await digest_of(store, reader, begin_lsn, end_lsn)
        finally:
            reader.stop()

    found = asyncio.run(story())
    assert found == hashlib.sha256(damaged.on_disk()).hexdigest()


def test_only_a_copy_with_the_digest_of_most_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = Damaged()
    sha256 = hashlib.sha256(damaged.sound).hexdigest()
    copies = [flipped(damaged.sound, Random(1).randrange(9000)), damaged.sound]

    def agreed(wanted: Wanted, peers: object) -> bytes | None:
        return next((copy for copy in copies if wanted.takes(copy)), None)

    monkeypatch.setattr(segment_repair, "agreed_copy", agreed)
    wanted = replace(damaged.wanted, sha256=sha256)
    assert asyncio.run(damaged.repaired(wanted)) == MEMBER
    assert damaged.on_disk() == damaged.sound


@pytest.mark.parametrize("earlier", ["a" * 64, None])
def test_an_object_that_the_archive_lost_differs_and_one_that_was_pruned_does_not(
    earlier: str | None,
) -> None:
    damaged = Damaged()
    store, begin_lsn = damaged.store, damaged.begin_lsn
    receipts = {Lsn(begin_lsn - store.segment_bytes): earlier}

    def receipt(file: SimpleNamespace) -> SimpleNamespace | None:
        digest = receipts.get(file.begin_lsn)
        return None if digest is None else SimpleNamespace(wal_sha256=digest)

    offload: Any = SimpleNamespace(
        archived_lsn=Lsn(1 << 40),
        file_of=lambda lsn: SimpleNamespace(begin_lsn=lsn, name=store.name_of(lsn)),
        archive=SimpleNamespace(receipt=receipt),
    )

    async def story() -> Comparison:
        reader = WorkerThread("reader", lambda defect: None)
        try:
            return await CopyDigests(store, offload, (), reader).compare(damaged.wanted)
        finally:
            reader.stop()

    assert asyncio.run(story()).differing == ((LOST,) if earlier else ())


@pytest.mark.parametrize("size", [-1, 0, RANGE_BYTES_MAX + 1])
def test_a_digest_of_too_much_is_refused(size: int) -> None:
    writer = Writer()
    DigestQuery("main", bytes(16), Lsn(1 << 40), Lsn((1 << 40) + size)).pack(writer)
    with pytest.raises(RemoteProtocolError):
        DigestQuery.unpack(Reader(memoryview(writer.finish())))
