"""The timeline numbers that this safekeeper has granted, and their file (R23). Pure.

    reserved.grant(timeline, owner, last_timeline=) -> Reserved, to be saved before the answer

A number is granted once. Numbers up to the log's last timeline are dropped, since no server is
promoted to them with the log's consent. So the file is short: it holds the promotions that have
been prepared since the last one that the log followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from walkeeper_common.errors import Refused
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_safekeeper.storage.sealed_file import flaws_with_remedy, seal, unseal

MAGIC = b"WKTLRESV"
VERSION = 1
RESERVED_MAX = 1024


@dataclass(frozen=True, slots=True)
class Reserved:
    """Owners by number."""

    owners: Mapping[int, str] = field(default_factory=dict)

    def grant(self, timeline: int, owner: str, *, last_timeline: int) -> Reserved:
        """Return the grants with this one, unless the number has an owner. Raise Refused if the
        log has gone on to that number, or if too many are granted."""
        if timeline <= last_timeline:
            raise Refused(
                f"timeline {timeline} cannot be reserved: the log is on timeline {last_timeline}; "
                "run `walkeeper settle` again"
            )
        if timeline in self.owners:
            return self
        kept = {number: name for number, name in self.owners.items() if number > last_timeline}
        if len(kept) >= RESERVED_MAX:
            raise Refused(
                f"{RESERVED_MAX} timelines after {last_timeline} are reserved and none was "
                "promoted: promote a server, or run `walkeeper settle` without --replayed-by"
            )
        return Reserved({**kept, timeline: owner})


def encode(reserved: Reserved) -> bytes:
    """Return the bytes of the whole file."""
    fields = Writer()
    fields.u32(len(reserved.owners))
    for timeline, owner in sorted(reserved.owners.items()):
        fields.u32(timeline)
        fields.text(owner)
    return seal(MAGIC, VERSION, fields.finish())


def decode(data: bytes, name: str) -> Reserved:
    """Return the argument of `encode`. Raise CorruptWal, with `name` and the remedy."""
    remedy = "A promotion may be under way: end it, remove this file, then start this safekeeper"
    with flaws_with_remedy(name, remedy):
        _, body = unseal(MAGIC, {VERSION}, data, name)
        fields = Reader(body)
        owners = {fields.u32(): fields.text() for _ in range(fields.u32())}
        fields.done()
    return Reserved(owners)
