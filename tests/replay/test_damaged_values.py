"""Bytes that do not have the layout of their type: each decoder refuses them by its own error."""

from __future__ import annotations

import random
import struct

import pytest

from walkeeper_replay.text.database_text import DamagedValue, UnknownText
from walkeeper_replay.text.value_text import Field, Printer, Type, builtin_types

PAIR, PAIRS, HSTORE, LTREE = range(17000, 17004)
INT4, NUMERIC, JSONB, ARRAY, OIDVECTOR, TSVECTOR = 23, 1700, 3802, 1007, 30, 3614
INET, BITS, JSONPATH = 869, 1560, 4072
SIZES = (0, 1, 2, 3, 4, 7, 8, 12, 16, 20, 24, 40, 64, 100)
ROUNDS = 60


def printer() -> Printer:
    types = builtin_types()
    types.has_dollars, types.roles, types.major = True, {10: "postgres"}, 15
    for oid, name in ((HSTORE, "hstore"), (LTREE, "ltree")):
        types.by_oid[oid] = Type(oid, name, -1, 4, "b", schema="public")
    types.by_oid[PAIR] = Type(PAIR, "pair", -1, 8, "c", relation=1)
    types.by_oid[PAIRS] = Type(PAIRS, "_pair", -1, 8, "b", element=PAIR)
    types.fields[1] = [Field("a", INT4, 4, 4), Field("b", 25, -1, 4), Field("c", 1009, -1, 4)]
    return Printer(types)


def is_refused(made: Printer, oid: int, data: bytes) -> bool:
    try:
        made.text(oid, data)
    except UnknownText:
        return True
    return False


def known_types(made: Printer) -> list[int]:
    return [oid for oid in made.types.by_oid if made.knows(oid)]


def test_random_bytes_raise_the_decoders_own_error_alone() -> None:
    """Counts in the bytes ask for gigabytes; a decoder looks at the value's size first."""
    chosen, made = random.Random(31), printer()
    found = {True: 0, False: 0}
    for _ in range(ROUNDS):
        for oid in known_types(made):
            size, likely = chosen.choice(SIZES), (0, 0, 0, 1, 2, 3, 255)
            data = bytes(chosen.choice((*likely, chosen.randrange(256))) for _ in range(size))
            found[is_refused(made, oid, data)] += 1
    assert found[True] > 1000 and found[False] > 100, found


VALUES = {
    JSONB: struct.pack("<III", 0x20000001, 0x80000001, 0x10000000 | 11) + b"a" + bytes(3)
    + struct.pack("<IHH", 8 << 2, 0x8000, 7),
    ARRAY: struct.pack("<iiIii", 1, 0, INT4, 2, 1) + struct.pack("<ii", 5, 6),
    OIDVECTOR: struct.pack("<iiIii", 1, 0, 26, 2, 0) + struct.pack("<ii", 5, 6),
    TSVECTOR: struct.pack("<II", 1, 3 << 1) + b"abc",
    HSTORE: struct.pack("<III", 0x80000001, 0x80000001, 2) + b"kv",
    INET: bytes((2, 32, 10, 0, 0, 1)),
    BITS: struct.pack("<I", 12) + b"\xaa\xa0",
}  # fmt: skip
TEXTS = {
    JSONB: '{"a": 7}', ARRAY: "{5,6}", OIDVECTOR: "5 6", TSVECTOR: "'abc'", HSTORE: '"k"=>"v"',
    INET: "10.0.0.1", BITS: "101010101010",
}  # fmt: skip


@pytest.mark.parametrize("oid", VALUES)
def test_a_value_without_its_end_is_damaged(oid: int) -> None:
    made = printer()
    assert made.text(oid, VALUES[oid]) == TEXTS[oid]
    for size in range(len(VALUES[oid])):
        with pytest.raises(DamagedValue):
            made.text(oid, VALUES[oid][:size])


def test_parts_end_within_their_value() -> None:
    made = printer()
    head = bytes(14) + struct.pack("<HHB", 2, 0, 24) + bytes(1)
    pair = head + struct.pack("<i", 7) + bytes((7,)) + b"ab"
    assert made.text(PAIR, pair) == "(7,ab,)"
    with pytest.raises(DamagedValue):
        made.text(PAIR, pair[:-1])


def test_a_value_of_fixed_length_has_that_length() -> None:
    made = printer()
    for oid in known_types(made):
        length = made.types.by_oid[oid].length
        if length > 0:
            with pytest.raises(DamagedValue):
                made.text(oid, bytes(length - 1))


def test_more_levels_than_are_shown_are_not_damage() -> None:
    made, data = printer(), struct.pack("<I", 0x40000000)
    for _ in range(3000):
        data = struct.pack("<II", 0x40000001, 0x50000000 | len(data)) + data
    with pytest.raises(UnknownText) as refusal:
        made.text(JSONB, data)
    assert not isinstance(refusal.value, DamagedValue)


def test_items_that_refer_twice_to_the_next_one_end() -> None:
    """Each level of this path would double the items that are shown."""
    both = struct.pack("<B3xiiiiii", 23, 0, 2, 32, 0, 32, 0).ljust(32, b"\0")
    data = struct.pack("<I", 1 | 1 << 31) + both * 40 + struct.pack("<B3xi", 27, 0)
    assert is_refused(printer(), JSONPATH, data)
