"""The receipt of an archived file: `<name>.sha256`, as sha256sum writes and checks it. Pure.

    9f86d081…  000000010000000000000003          the WAL itself
    60303ae2…  000000010000000000000003.zst      the object, if it is packed or encrypted
    # key 2026a                                  the id of the key, if it is encrypted

Its presence is a promise. Its writer had put the object, read it back from the store and compared
every byte with the WAL on its disk. An object without a receipt is not archived yet. So every
safekeeper learns from a listing which WAL is safe. An operator can check an archive with
`sha256sum --check --ignore-missing`. That works also after it was copied elsewhere, where the
metadata of objects is lost and a file system has none. It skips a line with `#`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from walkeeper_archive.layout import SEALED_SUFFIX, Packing, WalFile
from walkeeper_common.buffers import Buffer

RECEIPT_BYTES_MAX = 1000
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S+)")
_KEY_LINE = re.compile(r"# key ([A-Za-z0-9_.-]{1,32})")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The checksums of an archived file. Both are equal if it is neither packed nor encrypted.

    `key_id` names the key with which the object is encrypted, or is None.
    """

    file: WalFile
    packing: Packing
    wal_sha256: str
    object_sha256: str
    key_id: str | None = None

    @property
    def suffix(self) -> str:
        """The end of the object's name after the file's."""
        return object_suffix(self.packing, is_sealed=self.key_id is not None)

    @property
    def object_path(self) -> str:
        """The path of the object that it is about."""
        return self.file.path + self.suffix

    def format(self) -> bytes:
        """Return the content of the receipt's file."""
        text = f"{self.wal_sha256}  {self.file.name}\n"
        if self.suffix:
            text += f"{self.object_sha256}  {self.file.name}{self.suffix}\n"
        if self.key_id is not None:
            text += f"# key {self.key_id}\n"
        return text.encode()


def object_suffix(packing: Packing, *, is_sealed: bool) -> str:
    """Return the end of an object's name after that of its file."""
    return packing.value + (SEALED_SUFFIX if is_sealed else "")


def parse_receipt(file: WalFile, data: bytes) -> Receipt:
    """Parse a receipt; raise ValueError, with the reason, if it is no receipt of this file."""
    text = data.decode("ascii", "replace")
    lines = text.splitlines()
    key = _KEY_LINE.fullmatch(lines[-1]) if lines else None
    found = [_LINE.fullmatch(line) for line in (lines[:-1] if key else lines)]
    if not found or len(found) > 2 or not text.endswith("\n"):
        raise ValueError(f"not one or two lines of sha256sum: {data[:100]!r}")
    sums: dict[str, str] = {}
    for match in found:
        if match is None:
            raise ValueError(f"not what sha256sum writes: {data[:200]!r}")
        sums[match[2]] = match[1]
    if file.name not in sums:
        raise ValueError(f"it names {', '.join(sums)}, not {file.name}")
    wal_sha256, key_id = sums.pop(file.name), key[1] if key else None
    if not sums and key is None:
        return Receipt(file, Packing.PLAIN, wal_sha256, wal_sha256)
    for packing in Packing:
        suffix = object_suffix(packing, is_sealed=key is not None)
        if suffix and file.name + suffix in sums:
            return Receipt(file, packing, wal_sha256, sums[file.name + suffix], key_id)
    raise ValueError(f"it names {', '.join(sums) or 'no object'}, not an object of {file.name}")


def sha256_of(data: Buffer) -> str:
    """Return it in hexadecimal, as in a receipt. Other threads run meanwhile."""
    return hashlib.sha256(data).hexdigest()
