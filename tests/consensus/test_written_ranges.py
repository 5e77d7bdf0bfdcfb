"""Each range of a log tells which members it was written to (M5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.consensus.test_pure_late import LATE, leader_of
from tests.support.replaced_members import OLD
from walkeeper_admin.members import located
from walkeeper_admin.written_ranges import range_lines, written_ranges
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.fields import Reader, Writer


def packed(fragment: Fragment) -> bytes:
    fields = Writer()
    fields.fragment(fragment)
    return fields.finish()


@pytest.mark.parametrize(("configuration", "number"), [(LATE, LATE.generation), (OLD, 0)])
def test_a_fragment_names_its_generation_once_logs_begin_late(
    configuration: Configuration, number: int
) -> None:
    """Before, an earlier version has to read the log: the way back."""
    last = leader_of(configuration, {}).history[-1]
    assert last.generation == number and configuration.generation
    assert Reader(packed(last)).fragment() == last


def test_a_fragment_without_a_number_is_written_as_before_and_none_is_zero() -> None:
    last = leader_of(LATE, {}).history[-1]
    plain, numbered = packed(replace(last, generation=0)), packed(last)
    assert len(numbered) == len(plain) + 8
    with pytest.raises(RemoteProtocolError, match="generation 0"):
        Reader(numbered[:-8] + bytes(8)).fragment()


def entry(start: str, members: list[int], generation: int | None, term: int) -> dict[str, Any]:
    known = {"start_lsn": start, "members": members, "generation": generation, "term": term}
    return {**known, "ack_quorum": 2}


FIRST, SECOND = [1, 2, 3], [1, 2, 4]
HISTORY = [
    entry("0/0", FIRST, None, 0), entry("0/100", FIRST, None, 1), entry("0/100", FIRST, 3, 2),
    entry("0/300", SECOND, 4, 3), entry("0/400", SECOND, 4, 4),
]  # fmt: skip


def test_neighbours_of_one_set_are_one_range_and_the_best_log_tells() -> None:
    lagging = {"history": HISTORY[:2], "flush_lsn": "0/900"}
    written = written_ranges([lagging, {"history": HISTORY, "flush_lsn": "0/500"}])
    found = [(each["begin_lsn"], each["end_lsn"], each["generation"]) for each in written]
    assert found == [("0/0", "0/100", None), ("0/100", "0/300", 3), ("0/300", "0/500", 4)]
    assert (
        written_ranges([{"history": [{"start_lsn": "0/0", "term": 0}], "flush_lsn": "0/1"}]) == []
    )
    assert written_ranges([{"history": None, "flush_lsn": None}]) == []


def test_the_set_that_wrote_a_range_is_shown() -> None:
    written = written_ranges([{"history": HISTORY, "flush_lsn": "0/500"}])
    holding = [{"begin_lsn": "0/0", "end_lsn": "0/500", "holders": [1, 2]}]
    document = {"written": written, "ranges": holding, "members": [{"id": 1}, {"id": 2}]}
    assert located(document, Lsn(0x200)) == (
        "0/200: on 1, 2; written in generation 3 to 1, 2, 3, of which 2 acknowledged"
    )
    assert located(document, Lsn(0x80)).endswith("; written to 1, 2, 3, of which 2 acknowledged")
    assert len(range_lines(document)) == 3
    assert range_lines({"written": written[:1]}) == [], "one set says nothing new"
