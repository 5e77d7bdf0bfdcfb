"""A file's bytes to an object's, and back. A zstd frame has the file's size and its checksum."""

from __future__ import annotations

import threading
from typing import Any

from walkeeper_archive.archive_errors import ArchiveDamaged
from walkeeper_archive.layout import Packing
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused

_local = threading.local()  # zstandard's contexts are for one thread each


def pack(data: Buffer, packing: Packing, level: int = 3) -> Buffer:
    """Return the object's bytes."""
    if packing is Packing.PLAIN:
        return data
    compressor: Any = getattr(_local, f"compressor_{level}", None)
    if compressor is None:
        compressor = _zstandard().ZstdCompressor(level=level, write_checksum=True)
        setattr(_local, f"compressor_{level}", compressor)
    return bytes(compressor.compress(data))


def unpack(data: Buffer, packing: Packing, shown: str, *, size_max: int) -> Buffer:
    """Return the file's bytes.

    Raise ArchiveDamaged if they are not what `packing` says, or more than `size_max`. The frame's
    head says how much memory its content takes, so nothing is reserved for a greater one.
    """
    if packing is Packing.PLAIN:
        return data
    zstandard = _zstandard()
    try:
        if zstandard.frame_content_size(data) > size_max:
            raise ArchiveDamaged(f"{shown}: greater than {size_max} bytes when unpacked")
        decompressor = zstandard.ZstdDecompressor()
        return bytes(decompressor.decompress(data, max_output_size=size_max))
    except zstandard.ZstdError as error:
        raise ArchiveDamaged(f"{shown}: not zstd, or damaged: {error}") from error


def _zstandard() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise Refused(
            "zstd in an archive needs zstandard: pip install 'walkeeper[archive]'"
        ) from error
    return zstandard
