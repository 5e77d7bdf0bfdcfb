"""The compiled functions; their contracts are those of walk.walk and record_kinds.add_kinds."""

from typing import Protocol

from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.walk import Buffers, Walked, WalkRequest

def walk(request: WalkRequest, buffers: Buffers) -> Walked: ...
def add_kinds(
    records: Column, transaction: int, counts: Column, sizes: Column, fpi_sizes: Column, /
) -> None: ...
def crc_by_table(data: bytes, /) -> int: ...
def crc_by_best(data: bytes, /) -> int: ...

class Segment(Protocol):
    """The facts of a planned segment that its sums need."""

    @property
    def first_lsn(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def timeline(self) -> int: ...
    @property
    def system_id(self) -> int | None: ...
    @property
    def is_last(self) -> bool: ...

class SegmentSums:
    """The sums of whole segments, for one thread.

    `masks` has, at the low byte of a page's magic, WalVersion.image_compressed_mask. It is 0 for a
    magic that no version has.
    """

    def __init__(self, masks: bytes, transaction: int, check_crc: bool) -> None: ...
    def of(
        self,
        descriptor: int,
        segment: Segment,
        next_descriptor: int,
        following: Segment | None,
    ) -> tuple[dict[str, int], str, dict[int, tuple[int, int, int]]] | None:
        """Return the facts of a Summary, its status, and the sums by kind.

        Returns None if anything is not as usual. `next_descriptor` is that of the following
        segment's file, or -1 without one.
        """
