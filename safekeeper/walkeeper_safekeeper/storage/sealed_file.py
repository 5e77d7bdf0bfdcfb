"""The envelope of our small durable files: they are whole and ours, or they are refused. Pure.

    magic (8 bytes) | version u32 | body length u32 | body | CRC-32C u32 of everything before it

The control file, the WAL store's mark and replication slots use it. `unseal` raises CorruptWal with
the file and its flaw. The caller names the remedy in `flaws_with_remedy`, because only it knows the
promises in the file.
There is no I/O here; `Disk.replace` makes a file durable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from struct import Struct

from crc32c import crc32c

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal, RemoteProtocolError

MAGIC_BYTES = 8
_FRONT = Struct("!8sII")
_CRC = Struct("!I")


def seal(magic: bytes, version: int, body: bytes) -> bytes:
    """Return the bytes of a file of this kind."""
    assert len(magic) == MAGIC_BYTES, f"{magic=}"
    front = _FRONT.pack(magic, version, len(body))
    return front + body + _CRC.pack(crc32c(body, crc32c(front)))


def unseal(magic: bytes, versions: Collection[int], data: Buffer, name: str) -> tuple[int, bytes]:
    """Return (version, body) of a file; raise CorruptWal if its bytes are not as sealed."""
    data = bytes(data)
    if len(data) < _FRONT.size + _CRC.size:
        raise CorruptWal(f"{name} is {len(data)} bytes long, too short for its own header")
    found, version, size = _FRONT.unpack_from(data)
    if found != magic:
        raise CorruptWal(f"{name} is another kind of file: it starts with {found!r}, not {magic!r}")
    whole = _FRONT.size + size + _CRC.size
    if len(data) != whole:
        raise CorruptWal(f"{name} is {len(data)} bytes long, but says that it has {whole}")
    (expected,) = _CRC.unpack_from(data, whole - _CRC.size)
    actual = crc32c(data[: -_CRC.size])
    if actual != expected:
        raise CorruptWal(f"{name} is damaged: its CRC is {actual:08X}, not {expected:08X}")
    if version not in versions:
        known = ", ".join(str(v) for v in sorted(versions))
        raise CorruptWal(
            f"{name} has format version {version}; this program knows {known}. "
            "Start it with the program that wrote it"
        )
    return version, data[_FRONT.size : -_CRC.size]


@contextmanager
def flaws_with_remedy(name: str, remedy: str) -> Iterator[None]:
    """Raise CorruptWal with the remedy if the block finds a flaw of the envelope or the fields."""
    try:
        yield
    except CorruptWal as error:
        raise CorruptWal(f"{error}. {remedy}") from error
    except RemoteProtocolError as error:
        raise CorruptWal(f"{name} has a right CRC and wrong fields ({error}). {remedy}") from error
