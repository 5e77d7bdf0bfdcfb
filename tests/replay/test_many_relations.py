"""A store of more relations than its table had room for: each keeps its number and its level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.replay.test_compiled_redo import one_record
from walkeeper_replay.redo import store
from walkeeper_replay.redo.apply import HEAP, RECORD_CHANGES, RECORD_VERSIONS
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_wal.records.versions import version_of
from walkeeper_wal.sources.reading import Batch

COUNT = 100


@pytest.fixture(autouse=True)
def small_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RELATIONS_AT_FIRST", 8)


def test_each_wanted_relation_keeps_its_number_and_its_level() -> None:
    """The table of 65,536 places filled up, and the search for one more never ended."""
    wanted = [Relation(1663, 5, 16384 + n) for n in range(COUNT)]
    levels = dict.fromkeys(wanted[::3], RECORD_VERSIONS)
    made = PageStore(wanted=wanted, record_level=RECORD_CHANGES, levels=levels)
    assert [made.want(relation) for relation in wanted] == list(range(COUNT))
    assert made.relations == wanted
    found = made._recorded[:COUNT].tolist()
    assert found == [levels.get(relation, RECORD_CHANGES) for relation in wanted]


def test_records_of_more_relations_than_there_was_room_for_are_all_chosen() -> None:
    """A walk over WAL of more than 32,768 relations ended with an AssertionError."""
    made = PageStore(takes_all=True)
    chosen = [row for some in made.stretches(batch_of(range(COUNT))) for row in some.tolist()]
    assert [row for row, _, _ in chosen] == [number for _, number, _ in chosen]
    assert len(chosen) == len(made.relations) == COUNT


@pytest.mark.parametrize("known", range(6))
def test_a_batch_that_begins_with_one_relation_too_many_is_chosen_whole(known: int) -> None:
    """With 32,768 relations before it, its first new relation ended in an AssertionError."""
    wanted = [Relation(1663, 4, 16384 + n) for n in range(known)]
    made = PageStore(takes_all=True, wanted=wanted)
    chosen = [row for some in made.stretches(batch_of(range(COUNT))) for row in some.tolist()]
    assert [row for row, _, _ in chosen] == list(range(COUNT))
    assert made.relations[:known] == wanted and len(made.relations) == known + COUNT


def test_records_of_which_a_part_has_none_are_passed_over() -> None:
    """A part of the blocks that had none of the first 32,768 relations took them for too many."""
    nodes = range(0, 2 * COUNT, 2)
    parts = [PageStore(takes_all=True, part=part, parts=2) for part in range(2)]
    chosen = [sum(len(some) for some in each.stretches(batch_of(nodes))) for each in parts]
    assert chosen == [COUNT, 0] and {len(each.relations) for each in parts} == {COUNT}


def batch_of(nodes: range) -> Batch:
    """Return a batch in which each record is of the first block of another relation."""
    records, blocks = (np.repeat(rows, COUNT) for rows in one_record(HEAP, 0))
    blocks["tablespace"], blocks["database"] = 1663, 5
    blocks["relfilenode"], blocks["record"] = 16384 + np.array(nodes), np.arange(COUNT)
    segment: Any = None
    version = version_of(0xD110)
    assert version is not None
    return Batch(segment, version, np.zeros(64, np.uint8), records, blocks, np.empty(0, np.int64))
