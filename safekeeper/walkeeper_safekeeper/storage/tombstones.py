"""The logs that an operator has dropped here, and their file (docs/protocol.md M7). Pure.

    tombstones.with_log(tombstone) -> Tombstones, to be saved before any file goes
    tombstones.find(log_uuid)

A tombstone names the log by its uuid, so a new log may take the name of a dropped one. It keeps the
greatest promised ballot. The oldest of DROPPED_MAX tombstones goes when another log is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.history import Ballot
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_safekeeper.storage.sealed_file import flaws_with_remedy, seal, unseal

MAGIC = b"WKDROPPD"
VERSION = 1
DROPPED_MAX = 1024


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One dropped log. `dropped_s` is Unix time, for people."""

    cluster: str
    log_uuid: bytes
    ballot: Ballot
    dropped_s: int


@dataclass(frozen=True, slots=True)
class Tombstones:
    """All tombstones of a data directory, oldest first."""

    dropped: tuple[Tombstone, ...] = ()

    def find(self, log_uuid: bytes) -> Tombstone | None:
        """Return the log's tombstone, or None."""
        return next((each for each in self.dropped if each.log_uuid == log_uuid), None)

    def with_log(self, tombstone: Tombstone) -> Tombstones:
        """Return the tombstones with this one; the log may have one already."""
        if self.find(tombstone.log_uuid) is not None:
            return self
        return Tombstones((*self.dropped, tombstone)[-DROPPED_MAX:])


def encode(tombstones: Tombstones) -> bytes:
    """Return the bytes of the whole file."""
    fields = Writer()
    fields.u32(len(tombstones.dropped))
    for each in tombstones.dropped:
        fields.text(each.cluster)
        fields.raw(each.log_uuid, 16)
        fields.ballot(each.ballot)
        fields.u64(each.dropped_s)
    return seal(MAGIC, VERSION, fields.finish())


def decode(data: bytes, name: str) -> Tombstones:
    """Return the argument of `encode`. Raise CorruptWal, with `name` and the remedy."""
    remedy = "Remove this file if no dropped log can come back, then start this safekeeper"
    with flaws_with_remedy(name, remedy):
        _, body = unseal(MAGIC, {VERSION}, data, name)
        fields = Reader(body)
        count = fields.u32()
        dropped = tuple(
            Tombstone(fields.text(), fields.raw(16), fields.ballot(), fields.u64())
            for _ in range(count)
        )
        fields.done()
    return Tombstones(dropped)
