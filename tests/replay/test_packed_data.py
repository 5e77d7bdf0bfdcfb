"""Compressed values and page images: data that unpacks to another size is damaged."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from walkeeper_replay.redo.images import unpack
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_wal.records.segment import Bytes

# pglz: a byte of flags, then a literal for each 0 and a match (3 bytes long, 1 back) for a 1.
PGLZ = bytes((0b00000010, ord("a"), 0x00, 0x01))
CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


def bytes_of(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def packed(method: str, text: bytes) -> bytes:
    if method == "pglz":
        return PGLZ
    made: bytes = pa.Codec(CODECS[method]).compress(text, asbytes=True)
    return made


@pytest.mark.parametrize("method", ["pglz", "lz4", "zstd"])
def test_data_of_another_size_is_damaged(method: str) -> None:
    """The rest of the value would be bytes that were in memory before."""
    text = b"aaaa"
    data = packed(method, text)
    found = unpack(bytes_of(data), len(text), method)
    assert found is not None and found.tobytes() == text
    for size in (1, len(text) - 1, len(text) + 1, 100 * len(text)):
        assert unpack(bytes_of(data), size, method) is None, f"{size=}"


@pytest.mark.parametrize("method", ["pglz", "lz4"])
def test_data_without_its_end_or_with_more_is_damaged(method: str) -> None:
    data = packed(method, b"aaaa")
    for other in (*(data[:size] for size in range(len(data))), data + b"\0", data + b"\1\2"):
        assert unpack(bytes_of(other), 4, method) is None, f"{other!r}"


def test_the_size_of_lz4_is_that_of_its_decoder() -> None:
    chosen, codec = random.Random(5), pa.Codec("lz4_raw")
    for size in (0, 1, 14, 15, 16, 270, 4096, 70_000):
        for letters in (1, 2, 256):
            text = bytes(chosen.randrange(letters) for _ in range(size))
            assert loops.lz4_size(bytes_of(codec.compress(text, asbytes=True))) == size
