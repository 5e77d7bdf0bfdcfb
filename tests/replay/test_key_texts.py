"""The texts of a primary key follow labels, attributes and names, through types of types."""

from __future__ import annotations

import pytest

from walkeeper_replay.catalogs.key_texts import PLAIN, KeyTexts, key_texts
from walkeeper_replay.text.value_text import REGCLASS, Field, Type, builtin_types

INT, TEXT, REGCLASSES = 23, 25, 2210
ENUM, ENUMS, OTHER, DOMAIN, RANGE, PAIR = range(20001, 20007)
LABELS = ((7, "a"), (8, "b"))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ([INT, TEXT], PLAIN),
        ([], PLAIN),
        ([99999], PLAIN),
        ([INT, ENUM], KeyTexts(LABELS)),
        ([ENUMS], KeyTexts(LABELS)),
        ([DOMAIN], KeyTexts(LABELS)),
        ([RANGE], KeyTexts(LABELS)),
        ([PAIR], KeyTexts(LABELS, ((PAIR, (0, 2)),))),
        ([ENUM, OTHER], KeyTexts((*LABELS, (9, "z")))),
        ([REGCLASS], KeyTexts(has_names=True)),
        ([REGCLASSES, ENUM], KeyTexts(LABELS, has_names=True)),
    ],
)
def test_a_key_follows_the_labels_and_parts_of_its_types(
    key: list[int], expected: KeyTexts
) -> None:
    types = builtin_types()
    for made in (
        Type(ENUM, "kind", 4, 4, "e"),
        Type(ENUMS, "_kind", -1, 4, "b", element=ENUM),
        Type(OTHER, "other", 4, 4, "e"),
        Type(DOMAIN, "some", -1, 4, "d", base=ENUMS),
        Type(RANGE, "kinds", -1, 4, "r"),
        Type(PAIR, "pair", -1, 8, "c", relation=30000),
    ):
        types.by_oid[made.oid] = made
    types.ranges[RANGE] = ENUM
    types.labels = {8: "b", 7: "a", 9: "z"}
    types.enums = {8: ENUM, 7: ENUM, 9: OTHER}
    types.fields[30000] = [
        Field("a", INT, 4, 4), Field("gone", TEXT, -1, 4, dropped=True), Field("k", DOMAIN, -1, 4),
    ]  # fmt: skip
    assert key_texts(types, key) == expected
