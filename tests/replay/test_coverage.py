"""A program takes rows by a fact of their coverage, and never by its words."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa

from tests.replay.test_change_folds import TABLE
from walkeeper_replay.changes.change_reader import CUT_OFF
from walkeeper_replay.changes.change_rows import CHANGE_ROW, FoundChanges, Piece, covered
from walkeeper_replay.columns.columns_of_rows import AS_OIDS, UNREADABLE
from walkeeper_replay.table_at import _COVERAGE, _HAS_ALL, _HAS_VALUES, HEIRS, coverage_of
from walkeeper_replay.text.coverage import COMPLETE, Coverage, reason, together


def facts(coverage: Coverage) -> tuple[str, bool, bool, tuple[str, ...]]:
    return str(coverage), coverage.has_all, coverage.has_values, coverage.reasons


def test_words_that_end_like_others_decide_nothing() -> None:
    assert AS_OIDS.has_values
    assert not reason(f"no row is known, and neither are {AS_OIDS}").has_values
    assert HEIRS.has_all and not reason(f"a table of the name ; 1 {HEIRS}").has_all


def test_a_number_in_place_of_a_name_is_not_all_but_is_read_back() -> None:
    assert not AS_OIDS.has_all, "table-at ends with 1"
    assert AS_OIDS.has_values, "undo takes the change back"


def test_reasons_together_have_all_if_each_of_them_has() -> None:
    assert facts(together([])) == facts(COMPLETE) == ("complete", True, True, ())
    assert facts(together([COMPLETE, AS_OIDS])) == facts(AS_OIDS)
    both = together([AS_OIDS, UNREADABLE, AS_OIDS])
    assert facts(both) == (f"{AS_OIDS}; {UNREADABLE}", False, False, (AS_OIDS, UNREADABLE))
    assert facts(pickle.loads(pickle.dumps(both))) == facts(both)


def test_a_change_and_a_table_keep_the_fact() -> None:
    without_values = np.zeros(2, CHANGE_ROW)
    without_values["old"] = without_values["new"] = -1
    found = FoundChanges([Piece(TABLE, without_values, None, covered(2, AS_OIDS))])
    assert [change.coverage.has_values for change in found.changes()] == [True, True]
    found.doubt(lambda rows: np.arange(len(rows)) == 1, CUT_OFF)
    assert [change.coverage.has_values for change in found.changes()] == [True, False]
    rows = pa.table({"id": [1]})
    for has_all, has_values in ((True, True), (False, True), (False, False)):
        own = {_COVERAGE: b"words", _HAS_ALL: str(has_all).encode(),
               _HAS_VALUES: str(has_values).encode()}  # fmt: skip
        marked = rows.replace_schema_metadata(own)
        assert facts(coverage_of(marked)) == ("words", has_all, has_values, ("words",))
