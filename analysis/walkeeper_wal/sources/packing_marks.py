"""The first bytes of a file in an archive, and its name: how it is packed or encrypted. Pure.

It imports nothing that takes long, since each command looks at a few files before it reads one.
"""

from __future__ import annotations

from walkeeper_archive.sealing import is_sealed
from walkeeper_wal.wal_errors import HistoryError

MAGIC_BYTES = 8
SEALED = "sealed"
_CODECS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ", "xz"),
)
_ENCRYPTED = (
    (b"Salted__", "pgBackRest's cipher or openssl"),
    (b"-----BEGIN PGP", "PGP"),
    (b"\x85\x01", "PGP"), (b"\x85\x02", "PGP"), (b"\x8c\x0d", "PGP"), (b"\xc3\x0d", "PGP"),
    (b"age-encryption", "age"),
)  # fmt: skip

_PACKED_NAMES = (".gz", ".lz4", ".zst", ".zstd", ".bz2", ".xz", ".br", ".lzo", ".snappy")


def codec_of(mark: bytes, path: str) -> str | None:
    if is_sealed(mark):
        return SEALED
    for magic, codec in _CODECS:
        if mark.startswith(magic):
            return codec
    if path.endswith(".br"):
        return "brotli"
    if path.endswith(".lzma"):
        return "lzma"
    return None


def refuse_encrypted(mark: bytes, shown: str) -> None:
    """Raise HistoryError for an encrypted file; call it if the file is not compressed.

    WAL's first two bytes are its magic, 0xD1xx.
    """
    if shown.endswith(_PACKED_NAMES) and mark[1:2] != b"\xd1" and any(mark):
        raise HistoryError("neither compressed nor WAL; is it encrypted?", shown)
    for magic, method in _ENCRYPTED:
        if mark.startswith(magic):
            raise HistoryError(f"encrypted ({method}); decrypt the archive first", shown)
