"""The compiled loops of redo with records that no server writes: no access leaves its bytes."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from walkeeper_replay import consistency
from walkeeper_replay.redo import apply, page, store
from walkeeper_replay.redo.apply import ARENA, BROKEN, EVENTS, HEAP, HEAP2, KNOWN, XLOG
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_replay.tuples import deform, tuple_loops
from walkeeper_wal.records import walk
from walkeeper_wal.records.segment import Bytes, Column

APPLY_FLAG = 0x02
MULTI_INSERT, INSERT, INIT = 0x50, 0x00, 0x80
OWN_SIZE = (4, PAGE_BYTES >> 8)  # pd_pagesize_version
PYTHON = (apply, page, walk, consistency)


@pytest.mark.parametrize(
    ("numbers", "modules"),
    [(loops.numbers(), PYTHON), (tuple_loops.loops.numbers(), (deform,))],
    ids=["redo", "tuples"],
)
def test_numbers_are_those_of_python(
    numbers: dict[str, int], modules: tuple[ModuleType, ...]
) -> None:
    for name, value in numbers.items():
        owners = [module for module in modules if hasattr(module, name)]
        assert owners, name
        assert all(getattr(module, name) == value for module in owners), name


class Redo:
    """A store's arrays around some records, all of them on the middle one of three pages."""

    def __init__(self, records: Column, blocks: Column, payload: Bytes, events: int = 4096) -> None:
        self.records, self.blocks, self.payload = records, blocks, payload
        self.counts = np.zeros(apply.COUNTS, np.int64)
        self.pages = np.full((3, PAGE_BYTES), 0xA5, np.uint8)
        self.slots = np.zeros(3, apply.SLOT_ROW)
        self.events = np.zeros(events, apply.EVENT_ROW)
        self.arena = np.zeros(1 << 17, np.uint8)
        self._hash = np.full(16, -1, np.int64), np.zeros(16, np.int32)
        for block in range(3):
            loops.slot_of(*self._hash, self.slots, self.counts, 0, block)

    def apply(self, row: int, major: int, level: int = apply.RECORD_CHANGES) -> int:
        """Redo one record; return the page's state."""
        chosen = np.array([(row, 0, -1)], apply.CHOSEN_ROW)
        ends = np.arange(len(self.records), dtype=np.int64) + (1 << 40)
        done = loops.apply(
            self.payload, self.records, self.blocks, ends, ends, chosen, 0, 1,
            np.empty((0, PAGE_BYTES), np.uint8), APPLY_FLAG, major,
            np.full(1, level, np.uint8), self.pages, self.slots, *self._hash, self.counts,
            self.events, self.arena, np.empty(PAGE_BYTES, np.uint8),
        )  # fmt: skip
        assert done == 1
        return int(self.slots["state"][1])


def one_record(rmid: int, info: int, **fields: int) -> tuple[Column, Column]:
    records, blocks = np.zeros(1, walk.RECORD_ROW), np.zeros(1, walk.BLOCK_ROW)
    records["rmid"], records["info"], blocks["block_number"] = rmid, info, 1
    for name, value in fields.items():
        (records if name.startswith("main") else blocks)[name] = value
    return records, blocks


def random_page(random: np.random.Generator) -> Bytes:
    """Return a page of any bytes, whose header and some items mostly look right."""
    made: Bytes = random.integers(0, 256, PAGE_BYTES, np.uint8)
    made[:8] = 0
    count = int(random.integers(0, 40))
    upper = int(random.integers(24 + 4 * count, PAGE_BYTES + 1))
    header = np.array([24 + 4 * count, upper, random.choice([PAGE_BYTES, 8176])], np.uint16)
    if random.random() < 0.9:
        made[12:18] = header.view(np.uint8)
        items = np.empty(count, np.uint32)
        for k in range(count):
            place, length = random.integers(0, 1 << 15), random.integers(0, 1 << 9)
            if random.random() < 0.8:
                place = random.integers(upper, PAGE_BYTES + 1)
            items[k] = int(place) | int(random.choice([0, 1, 1, 1, 2, 3])) << 15 | int(length) << 17
        made[24 : 24 + 4 * count] = items.view(np.uint8)
    return made


@pytest.mark.parametrize("major", [13, 14, 16, 17])
def test_no_record_reaches_beyond_its_page(major: int) -> None:
    random, count, size = np.random.default_rng(major), 800, 4096
    records, blocks = np.zeros(count, walk.RECORD_ROW), np.zeros(count, walk.BLOCK_ROW)
    records["rmid"] = random.choice([HEAP, HEAP, HEAP2, XLOG], count)
    records["info"] = random.integers(0, 256, count)
    records["main_offset"] = random.integers(0, size + 40, count)
    blocks["record"], blocks["block_number"] = np.arange(count), 1
    blocks["block_id"] = random.integers(0, 2, count)
    blocks["flags"] = random.choice([0x20, 0x20, 0x30], count)
    blocks["image_info"] = APPLY_FLAG
    for name in ("image_length", "hole_offset", "hole_length"):
        blocks[name] = random.integers(0, PAGE_BYTES + 100, count)
    for name in ("data_offset", "image_offset"):
        blocks[name] = random.integers(0, size + 40, count)
    blocks["data_length"] = random.integers(0, 600, count)
    payload: Bytes = random.choice(np.arange(0, 256, dtype=np.uint8), size)
    payload[::3] &= 0x1F  # many numbers of items are those of a page
    before, states = payload.copy(), set()
    for row in range(count):
        tried = Redo(records, blocks, payload)
        tried.pages[1], tried.slots["state"][1] = random_page(random), KNOWN
        states.add(tried.apply(row, major))
        assert (tried.pages[[0, 2]] == 0xA5).all(), f"{row=}"
        assert tried.counts[EVENTS] <= len(tried.events)
        assert tried.counts[ARENA] <= len(tried.arena)
    assert states == {KNOWN, BROKEN}
    assert (payload == before).all()


def test_record_longer_than_the_wal_breaks_its_page() -> None:
    payload = np.zeros(100, np.uint8)
    payload[0] = 1  # the number of the item
    fields = {"main_offset": 0, "data_offset": 90, "flags": walk.HAS_DATA}
    for length, state in ((10, KNOWN), (11, BROKEN)):
        redo = Redo(*one_record(HEAP, INSERT | INIT, data_length=length, **fields), payload)
        assert redo.apply(0, 16) == state


def test_image_that_is_no_page_breaks_its_page() -> None:
    payload = np.ones(3 * PAGE_BYTES, np.uint8)
    payload[18:20] = OWN_SIZE
    fields = {"flags": walk.HAS_IMAGE, "image_info": APPLY_FLAG, "hole_offset": 100}
    for length, hole, state in ((8000, 192, KNOWN), (8000, 191, BROKEN), (8192, 192, BROKEN)):
        fields |= {"image_length": length, "hole_length": hole}
        redo = Redo(*one_record(XLOG, 0xB0, **fields), payload)
        assert redo.apply(0, 16) == state


@pytest.mark.parametrize("size", [4096, 16384, 32768])
def test_image_of_a_server_with_other_blocks_breaks_its_page(size: int) -> None:
    """Its hole has no length in the record: 8192 bytes would be made of a page of another size."""
    image = np.zeros(1000, np.uint8)
    image[12:20] = np.array([28, size - 972, size, size | 4], np.uint16).view(np.uint8)
    fields = {"flags": walk.HAS_IMAGE, "image_info": APPLY_FLAG, "hole_offset": 28}
    fields |= {"image_length": 1000, "hole_length": PAGE_BYTES - 1000}
    redo = Redo(*one_record(XLOG, 0xB0, **fields), image)
    assert redo.apply(0, 16) == BROKEN
    image[18:20] = OWN_SIZE
    assert redo.apply(0, 16) == KNOWN


def test_page_of_a_file_needs_its_blocks_checksum_and_a_header() -> None:
    made = np.zeros(PAGE_BYTES, np.uint8)
    assert loops.verifies(made, 7, True), "new"
    made[12:20] = np.array([24, 8000, 8176, PAGE_BYTES | 4], np.uint16).view(np.uint8)
    checksum, found = made[8:10].view(np.uint16), []
    for value in range(1 << 16):
        checksum[0] = value
        found += [value] if loops.verifies(made, 7, True) else []
    assert len(found) == 1
    checksum[0] = found[0]
    assert not loops.verifies(made, 8, True), "the checksum of another block"
    assert loops.verifies(made, 8, False)
    for at, value in ((10, 8), (13, 0xFF), (15, 0x40), (16, 0xF1), (17, 0x20), (14, 0)):
        other = made.copy()
        other[at] = value
        other[15] = other[15] if at != 14 else 0
        assert not loops.verifies(other, 7, False), f"{at=}"


@pytest.mark.parametrize("rmid", [apply.GENERIC, apply.CUSTOM_MIN, 255])
def test_record_of_an_extension_breaks_its_page(rmid: int) -> None:
    """Until an image comes: what the record did to the page is not known."""
    payload = np.ones(3 * PAGE_BYTES, np.uint8)
    payload[18:20] = OWN_SIZE
    for info in (INSERT, INSERT | INIT):
        redo = Redo(*one_record(rmid, info), payload)
        redo.pages[1], redo.slots["state"][1] = random_page(np.random.default_rng(3)), KNOWN
        redo.pages[1, :8] = 0
        assert redo.apply(0, 16) == BROKEN
        assert redo.counts[EVENTS] == 0
    fields = {"flags": walk.HAS_IMAGE, "image_info": APPLY_FLAG, "image_length": PAGE_BYTES}
    assert Redo(*one_record(rmid, 0, **fields), payload).apply(0, 16) == KNOWN


@pytest.mark.parametrize("rmid", [HEAP, apply.GENERIC, apply.CUSTOM_MIN])
def test_records_of_extensions_are_chosen_like_those_of_heap(rmid: int) -> None:
    records, blocks = one_record(rmid, 0)
    made = store.PageStore(wanted=[store.Relation(1663, 5, 16384)])
    blocks["tablespace"], blocks["database"], blocks["relfilenode"] = 1663, 5, 16384
    chosen = np.empty(1, apply.CHOSEN_ROW)
    count, _ = loops.choose(
        records, blocks, 0, made._keys, made._values, np.empty(0, np.int64), False, 0, 1,
        made._whole, made.counts, chosen,
    )  # fmt: skip
    assert count == 1


def test_events_end_where_their_room_ends() -> None:
    payload = np.full(200_000, 0xFF, np.uint8)  # 65535 tuples, of a page that is not known
    redo = Redo(*one_record(HEAP2, MULTI_INSERT, main_offset=0), payload, events=1300)
    guard = redo.arena.copy()
    redo.apply(0, 16)
    assert redo.counts[EVENTS] == len(redo.events)
    assert (redo.arena == guard).all()


def test_relation_stays_where_states_of_earlier_versions_have_it() -> None:
    made = store.PageStore(wanted=[store.Relation(1663, 5, n) for n in (1259, 16384, 70000)])
    assert np.flatnonzero(made._values >= 0).tolist() == [51740, 55452, 62052]


@pytest.mark.parametrize(("name", "module"), [("redo", "redo_loops"), ("tuples", "tuple_loops")])
def test_installation_without_a_compiler_says_what_to_do(name: str, module: str) -> None:
    program = (
        f"import sys; sys.modules['walkeeper_replay.{name}._{name}'] = None\n"
        "from walkeeper_wal.wal_errors import NotCompiled\n"
        f"try: import walkeeper_replay.{name}.{module}\n"
        "except NotCompiled as error: sys.exit(str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "lacks" in done.stderr, done.stderr
    assert "Install a wheel of walkeeper, or install gcc" in done.stderr
