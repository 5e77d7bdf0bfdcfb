"""The compiled functions of redo. All arrays are whole: C-contiguous, of the types of apply.py."""

from walkeeper_wal.records.segment import Bytes, Column

def numbers() -> dict[str, int]: ...
def find_relation(keys: Column, values: Column, space: int, node: int) -> int: ...
def choose(
    records: Column, blocks: Column, first: int, keys: Column, values: Column, low_nodes: Column,
    takes_all: bool, part: int, parts: int, whole: Column, counts: Column, chosen: Column,
) -> tuple[int, int]: ...  # fmt: skip
def slot_of(
    hash_keys: Column, hash_slots: Column, slots: Column, counts: Column, relation: int, block: int
) -> int: ...
def rehash(hash_keys: Column, hash_slots: Column, slots: Column, used: int) -> None: ...
def slots_at(
    hash_keys: Column, hash_slots: Column, relations: Column, blocks: Column, into: Column
) -> None: ...
def make_slots(
    hash_keys: Column, hash_slots: Column, slots: Column, counts: Column, keys: Column,
    into: Column,
) -> None: ...  # fmt: skip
def apply(
    payload: Bytes, records: Column, blocks: Column, starts: Column, ends: Column, chosen: Column,
    first: int, until: int, images: Bytes, apply_flag: int, major: int, recorded: Column,
    pages: Bytes, slots: Column, hash_keys: Column, hash_slots: Column, counts: Column,
    events: Column, arena: Bytes, scratch: Bytes,
) -> int: ...  # fmt: skip
def note_all(
    page: Bytes, block: int, relation: int, start_lsn: int, end_lsn: int, counts: Column,
    events: Column, arena: Bytes,
) -> None: ...  # fmt: skip
def verifies(page: Bytes, block: int, have_checksums: bool) -> bool: ...
def check_pages(pages: Bytes, blocks: Column, have_checksums: bool, out: Bytes) -> None: ...
def redo_page(
    page: Bytes, state: int, payload: Bytes, records: Column, blocks: Column, rows: Column,
    image_numbers: Column, images: Bytes, ends: Column, apply_flag: int, scratch: Bytes,
    major: int,
) -> tuple[int, int]: ...  # fmt: skip
def mask_heap_page(page: Bytes, block: int) -> None: ...
def check(
    payload: Bytes, records: Column, blocks: Column, ends: Column, chosen: Column, first: int,
    images: Bytes, apply_flag: int, major: int, pages: Bytes, slots: Column, hash_keys: Column,
    hash_slots: Column, counts: Column, scratch: Bytes, masked: Bytes, tally: Column,
    different: Column,
) -> int: ...  # fmt: skip
def pglz_decompress(source: Bytes, into: Bytes) -> bool: ...
def lz4_size(source: Bytes) -> int: ...
def list_resets(records: Column, blocks: Column, apply_flag: int, rows: Column) -> int: ...
def enter_resets(keys: Column, lsns: Column, relation: int, rows: Column) -> None: ...
def leave_out(
    records: Column, blocks: Column, keys: Column, lsns: Column, chosen: Column
) -> int: ...  # fmt: skip
