"""Encryption of an archive's objects: AES-256-GCM. It draws a nonce for each, and does no I/O.

    head   b"wkAES256", the length of the key's id, the id, 12 bytes of nonce
    body   the packed file, encrypted
    end    16 bytes of tag, over the head, the file's name and the body

The name in the tag keeps an object from passing as another file. Each object is sealed and opened
as a whole, as it is packed: no byte is given out before the tag is checked. That takes one copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from walkeeper_archive.archive_errors import ArchiveDamaged, KeyUnknown
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused

MAGIC: Final = b"wkAES256"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
REMEDY: Final = "give --archive-keys a file with its line; docs/archive.md#encryption"
_KEY_LINE = re.compile(r"(?P<id>[A-Za-z0-9_.-]{1,32})[ \t]+(?P<key>[0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """One key; its id stands in each object and receipt."""

    key_id: str
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of this process. `newest` seals; all of them open. An empty one seals nothing."""

    newest: ArchiveKey | None = None
    keys: Mapping[str, ArchiveKey] = field(default_factory=dict)

    def key(self, key_id: str, shown: str) -> ArchiveKey:
        """Return a key; raise KeyUnknown if it is not here."""
        found = self.keys.get(key_id)
        if found is None:
            raise KeyUnknown(f"{shown} is encrypted with key {key_id}, which is not here: {REMEDY}")
        return found


def parse_keys(text: str, shown: str) -> KeyRing:
    """Return the keys of `ID HEX` lines, the newest first; raise Refused, without a key's text."""
    found: dict[str, ArchiveKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _KEY_LINE.fullmatch(line.strip())
        if match is None:
            raise Refused(
                f"line {number} of {shown} is no key: write an id, a blank and 64 hexadecimal "
                "digits (openssl rand -hex 32)"
            )
        if match["id"] in found:
            raise Refused(f"{shown} has two keys {match['id']}: each key needs an id of its own")
        found[match["id"]] = ArchiveKey(match["id"], bytes.fromhex(match["key"]))
    if not found:
        raise Refused(f"{shown} has no key: write an id, a blank and 64 hexadecimal digits")
    return KeyRing(next(iter(found.values())), found)


def is_sealed(data: Buffer) -> bool:
    """Return True if these first bytes of an object are those of an encrypted one."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def seal(data: Buffer, key: ArchiveKey, name: str) -> memoryview:
    """Return the encrypted object of a file's packed bytes."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    nonce, key_id = os.urandom(NONCE_BYTES), key.key_id.encode()
    head = MAGIC + bytes([len(key_id)]) + key_id + nonce
    made = memoryview(bytearray(len(head) + len(data) + TAG_BYTES))
    encryptor = Cipher(algorithms.AES(key.key), modes.GCM(nonce)).encryptor()
    encryptor.authenticate_additional_data(head + name.encode())
    made[: len(head)] = head
    done = encryptor.update_into(data, made[len(head) :])
    assert done == len(data), f"{done=} {len(data)=}"
    encryptor.finalize()
    made[-TAG_BYTES:] = encryptor.tag
    return made


def key_id_of(data: Buffer, shown: str) -> str:
    """Return the id of the key in an object's head; raise ArchiveDamaged if it has no such head."""
    size = data[len(MAGIC)] if len(data) > len(MAGIC) and is_sealed(data) else 0
    begin = len(MAGIC) + 1
    if not size or len(data) < begin + size + NONCE_BYTES + TAG_BYTES:
        raise ArchiveDamaged(f"{shown} is not encrypted by walkeeper, or it is damaged")
    return bytes(data[begin : begin + size]).decode("ascii", "replace")


def unseal(data: Buffer, keys: KeyRing, name: str, shown: str) -> memoryview:
    """Return the packed bytes; raise KeyUnknown for a lacking or another key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = keys.key(key_id_of(data, shown), shown)
    view = memoryview(data)
    end = len(MAGIC) + 1 + len(key.key_id) + NONCE_BYTES
    head, body, tag = bytes(view[:end]), view[end:-TAG_BYTES], bytes(view[-TAG_BYTES:])
    mode = modes.GCM(head[-NONCE_BYTES:], tag)
    decryptor = Cipher(algorithms.AES(key.key), mode).decryptor()
    decryptor.authenticate_additional_data(head + name.encode())
    opened = memoryview(bytearray(len(body) + TAG_BYTES))
    done = decryptor.update_into(body, opened)
    assert done == len(body), f"{done=} {len(body)=}"
    try:
        decryptor.finalize()
    except InvalidTag:
        raise KeyUnknown(
            f"{shown} does not open with key {key.key_id}: another key had this id when it was "
            "written, or the object is damaged or another file's; compare the key with that of the "
            "safekeepers, then run walkeeper archive verify"
        ) from None
    return opened[:done]
