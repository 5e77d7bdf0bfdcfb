"""WAL in which a record is two bytes, so that a log of two records can be explored to its end.

A byte is (kind, writer). FIRST and LAST make a record. A primary that crashed with FIRST alone on
its disk goes on with LAST, or, at the next byte, with OVERWRITE and LAST. This is PostgreSQL's
OVERWRITE_CONTRECORD, which ends the aborted record. Two writers never write the same byte, so that
each byte shows its writer. The proposer and the acceptor never look inside WAL. Only the disk's
search for record ends does, and here that is `record_end`. HOLE stands for each byte below the
beginning of a log.
"""

from __future__ import annotations

from walkeeper_common.lsn import Lsn

HOLE = 0
FIRST, LAST, OVERWRITE = 1, 2, 3
WRITERS_MAX = 64
CREATION_LSN = Lsn(1 << 24)
SEGMENT_BYTES = 1 << 24
LATE_SEGMENT_BYTES = 1  # a log that begins late begins one record before a term


class Mixture(Exception):
    """Bytes that no primary wrote one after the other."""


def byte(kind: int, writer: int) -> bytes:
    assert 0 <= writer < WRITERS_MAX, f"{writer=}"
    return bytes((kind * WRITERS_MAX + writer,))


def record_end(wal: bytes) -> int:
    """Return where the last whole record ends (R18); raise Mixture if two primaries wrote it."""
    end, is_whole = valid_end(wal)
    if not is_whole:
        raise Mixture(f"{wal.hex()} is nobody's WAL from byte {end} on")
    return end


def valid_end(wal: bytes) -> tuple[int, bool]:
    """Return the end of valid WAL, as a scan finds it, and whether half a record follows.

    A record that was cut off ends nothing before the one that cuts it off is complete.
    """
    at = end = begin_of(wal)
    while at < len(wal):
        kind, writer = divmod(wal[at], WRITERS_MAX)
        if kind == LAST:
            return end, False
        if at + 1 == len(wal):
            return end, True
        following = divmod(wal[at + 1], WRITERS_MAX)
        if following == (LAST, writer):
            at = end = at + 2
        elif following[0] == OVERWRITE:
            at += 1
        else:
            return end, False
    return end, True


def begin_of(wal: bytes) -> int:
    """Return where a log begins that lacks what is below."""
    return len(wal) - len(wal.lstrip(bytes((HOLE,))))


def filled(wal: bytes, other: bytes) -> bytes:
    """Return `wal` with the bytes of another log in its holes."""
    begin = min(begin_of(wal), len(other))
    return other[:begin] + wal[begin:]


def continuations(wal: bytes, tail: bytes, writer: int, *, aborts: bool) -> list[bytes]:
    """Return each half record that a primary with `wal` may send next.

    tail    the bytes that follow in the donor's log, the beginning of a record; its writer may
            have them on its disk, too
    """
    if record_end(wal) == len(wal):
        fresh = byte(FIRST, writer)
        return [fresh, tail[:1]] if tail and aborts else [fresh]
    begun_by = wal[-1] % WRITERS_MAX
    return [byte(LAST, begun_by), byte(OVERWRITE, writer)] if aborts else [byte(LAST, begun_by)]


def at_lsn(offset: int) -> Lsn:
    return CREATION_LSN + offset


def offset_of(lsn: Lsn) -> int:
    return lsn - CREATION_LSN
