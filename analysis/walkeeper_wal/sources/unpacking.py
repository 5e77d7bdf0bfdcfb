"""Unpack a file of an archive: gzip, zstd, lz4, bzip2, xz, brotli, and walkeeper's encryption."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from walkeeper_archive.layout import SEALED_SUFFIX, ZSTD_SUFFIX
from walkeeper_archive.own_keys import own_keys
from walkeeper_archive.sealing import unseal
from walkeeper_common.errors import WalkeeperError
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.packing_marks import MAGIC_BYTES, SEALED, codec_of, refuse_encrypted
from walkeeper_wal.wal_errors import HistoryError

WAL_BYTES_MAX = 1 << 30  # no segment is longer, so that unpacking stops there
CHUNK_BYTES = 1 << 20


def read_unpacked(path: Path, shown: str) -> Bytes:
    """Read straight into the array, which saves a copy of 16 MiB."""
    with path.open("rb", buffering=0) as file:
        size = min(os.fstat(file.fileno()).st_size, WAL_BYTES_MAX)
        data = np.empty(size, np.uint8)
        view, done = data.data, 0
        while done < size and (count := file.readinto(view[done:])):
            done += count
    return unpack(data[:done], shown)


def unpack(data: Bytes, shown: str, size: int = WAL_BYTES_MAX) -> Bytes:
    """Return at most `size` unpacked bytes of `data`, or those before a broken file's damage."""
    mark = data[:MAGIC_BYTES].tobytes()
    codec = codec_of(mark, shown)
    if codec is None:
        refuse_encrypted(mark, shown)
        return data[:size]
    if codec is SEALED:
        name = shown.removesuffix(SEALED_SUFFIX)
        return unpack(np.frombuffer(_opened(data, name, shown), np.uint8), name, size)
    if codec in ("xz", "lzma"):
        return _unpack_xz(data, shown, size)
    import pyarrow as pa

    pieces: list[bytes] = []
    done = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
            while done < size and (piece := stream.read(min(CHUNK_BYTES, size - done))):
                pieces.append(piece)
                done += len(piece)
    except (OSError, pa.ArrowException) as error:
        if not pieces:
            raise HistoryError(f"not {codec} after all: {error}", shown) from error
    return np.frombuffer(b"".join(pieces), np.uint8)


def _opened(data: Bytes, name: str, shown: str) -> memoryview:
    """Return an encrypted object's packed bytes."""
    file = name.rpartition("/")[2].removesuffix(ZSTD_SUFFIX)
    try:
        return unseal(data.data, own_keys(), file, shown)
    except WalkeeperError as error:
        raise HistoryError(str(error)) from error


def _unpack_xz(data: Bytes, shown: str, size: int) -> Bytes:
    import lzma

    try:
        return np.frombuffer(lzma.LZMADecompressor().decompress(data.data, size), np.uint8)
    except lzma.LZMAError as error:
        raise HistoryError(f"not xz after all: {error}", shown) from error
