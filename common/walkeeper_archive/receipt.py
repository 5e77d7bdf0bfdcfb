"""The receipt of an archived file: `<name>.sha256`, as sha256sum writes and checks it. Pure.

    9f86d081…  000000010000000000000003          the WAL itself
    60303ae2…  000000010000000000000003.zst      the object, if it is packed

Its presence is a promise. Its writer had put the object, read it back from the store and compared
every byte with the WAL on its disk. An object without a receipt is not archived yet. So every
safekeeper learns from a listing which WAL is safe. An operator can check an archive with
`sha256sum --check --ignore-missing`. That works also after it was copied elsewhere, where the
metadata of objects is lost and a file system has none.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from walkeeper_archive.layout import Packing, WalFile

RECEIPT_BYTES_MAX = 1000
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S+)")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The checksums of an archived file. Both are equal if it is not packed."""

    file: WalFile
    packing: Packing
    wal_sha256: str
    object_sha256: str

    @property
    def object_path(self) -> str:
        """The path of the object that it is about."""
        return self.file.path + self.packing.value

    def format(self) -> bytes:
        """Return the content of the receipt's file."""
        text = f"{self.wal_sha256}  {self.file.name}\n"
        if self.packing is not Packing.PLAIN:
            text += f"{self.object_sha256}  {self.file.name}{self.packing.value}\n"
        return text.encode()


def parse_receipt(file: WalFile, data: bytes) -> Receipt:
    """Parse a receipt; raise ValueError, with the reason, if it is no receipt of this file."""
    text = data.decode("ascii", "replace")
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    if not found or len(found) > 2 or not text.endswith("\n"):
        raise ValueError(f"not one or two lines of sha256sum: {data[:100]!r}")
    sums: dict[str, str] = {}
    for match in found:
        if match is None:
            raise ValueError(f"not what sha256sum writes: {data[:200]!r}")
        sums[match[2]] = match[1]
    if file.name not in sums:
        raise ValueError(f"it speaks of {', '.join(sums)}, not of {file.name}")
    packed = file.name + Packing.ZSTD.value
    if len(found) == 1:
        return Receipt(file, Packing.PLAIN, sums[file.name], sums[file.name])
    if packed not in sums:
        raise ValueError(f"it speaks of {', '.join(sums)}, not of {packed}")
    return Receipt(file, Packing.ZSTD, sums[file.name], sums[packed])


def sha256_of(data: bytes | memoryview) -> str:
    """Return it in hexadecimal, as in a receipt. Other threads run meanwhile."""
    return hashlib.sha256(data).hexdigest()
