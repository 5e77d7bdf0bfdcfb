"""An object of an archive is sealed whole, and opens with its key, under its name, unchanged."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from walkeeper_archive.archive_errors import ArchiveDamaged, ArchiveError, KeyUnknown
from walkeeper_archive.sealing import parse_keys, seal, unseal

MB = 1 << 20
NEW = f"2026a {'22' * 32}\n"


def test_an_object_opens_under_its_own_name_alone() -> None:
    ring = parse_keys(NEW, "keys")
    assert ring.newest is not None
    sealed = seal(b"wal", ring.newest, "000000010000000000000003")
    assert bytes(unseal(sealed, ring, "000000010000000000000003", "shown")) == b"wal"
    with pytest.raises(KeyUnknown, match="another file's"):
        unseal(sealed, ring, "000000010000000000000004", "shown")


def test_no_nonce_is_used_twice() -> None:
    """Two objects with one nonce and one key would show the difference of their bytes."""
    ring = parse_keys(NEW, "keys")
    assert ring.newest is not None
    assert len({bytes(seal(b"wal", ring.newest, "name")) for _ in range(100)}) == 100


@pytest.mark.parametrize("size", [0, 8, 9, 20, 35])
def test_an_object_without_its_head_is_damage(size: int) -> None:
    ring = parse_keys(NEW, "keys")
    assert ring.newest is not None
    sealed = seal(b"", ring.newest, "name")
    with pytest.raises(ArchiveDamaged):
        unseal(sealed[:size], ring, "name", "shown")
    assert bytes(unseal(sealed, ring, "name", "shown")) == b""


def test_a_flipped_byte_anywhere_opens_nothing() -> None:
    ring = parse_keys(NEW, "keys")
    assert ring.newest is not None
    sealed = bytes(seal(b"0123456789", ring.newest, "name"))
    for at in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        with pytest.raises(ArchiveError):
            unseal(bytes(damaged), ring, "name", "shown")


def test_one_copy_is_the_cost_in_memory() -> None:
    ring, wal = parse_keys(NEW, "keys"), Random(1).randbytes(8 * MB)
    assert ring.newest is not None
    seal(b"x", ring.newest, "name")  # imports
    tracemalloc.start()
    try:
        sealed = seal(wal, ring.newest, "name")
        assert unseal(sealed, ring, "name", "shown") == wal
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2.1 * len(wal)
