"""Valid WAL whose records refer to blocks: what the history's and the pager's readers begin with.

`block_seeds` are inputs of `wal`. They have few relations and blocks, so that records meet. They
have images with holes, initialisations, repeated relations and several references a record. Some
resource managers say something of whole files (commits, storage, databases): their main data is of
any bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from struct import pack

from tests.proof.fuzz.wal import HEAD
from tests.support.wal_maker import PAGE, WalMaker

HAS_IMAGE, HAS_DATA, WILL_INIT, SAME_RELATION = 0x10, 0x20, 0x40, 0x80
HAS_HOLE, APPLY = 0x01, 0x02
XACT, STORAGE, DATABASE, HEAP2, HEAP, BTREE, SEQUENCE = 1, 2, 4, 9, 10, 11, 15
MANAGERS = (XACT, STORAGE, DATABASE, HEAP2, HEAP, HEAP, BTREE, SEQUENCE)


def body(random: Random) -> bytes:
    """Make the bytes after a record's header: references, their data, the record's own."""
    head, held = b"", b""
    for number in range(random.randrange(4)):
        image = random.choice([b"", random.randbytes(random.choice([40, 300]))])
        data = random.randbytes(random.choice([0, 5, 40]))
        flags = random.choice([0, 0, 0, 1, 2, 3]) | random.choice([0, WILL_INIT])
        flags |= (HAS_IMAGE if image else 0) | (HAS_DATA if data else 0)
        flags |= SAME_RELATION if number and random.randrange(2) else 0
        head += pack("<BBH", number, flags, len(data))
        if image:
            head += pack("<HHB", len(image), 24, HAS_HOLE | random.choice([0, APPLY]))
        if not flags & SAME_RELATION:
            head += pack("<III", 1663, 5, 16384 + random.randrange(3))
        head += pack("<I", random.choice([0, 1, 2, 7, (1 << 32) - 2]))
        held += image + data
    main = random.randbytes(random.choice([0, 3, 20, 60]))
    if main:
        head += pack("<BB", 255, len(main))
    return head + held + main


def block_seeds() -> Iterable[bytes]:
    for seed in range(6):
        random = Random(seed)
        maker = WalMaker(random, segment_bytes=PAGE << (1 + seed % 2))
        while maker.end_lsn - maker.start_lsn < 2 * PAGE:
            found = body(random)
            if found:
                info = random.randrange(16) << 4
                maker.record_body(found, info, random.choice(MANAGERS))
        wal = maker.read(maker.start_lsn, maker.end_lsn)[: 4 * PAGE]
        yield HEAD.pack(seed % 2, 0, 0, 0) + wal
