"""The compiled functions; their contracts are those of walk.walk and stats.add_kinds."""

from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.walk import Buffers, Walked, WalkRequest

def walk(request: WalkRequest, buffers: Buffers) -> Walked: ...
def add_kinds(
    records: Column, transaction: int, counts: Column, sizes: Column, fpi_sizes: Column, /
) -> None: ...
def crc_by_table(data: bytes, /) -> int: ...
