"""Mutants of the streams of changes: ranges that come again, and what a mirror folds."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

SPARK = "tests/replay/test_spark_changes_stream.py::test_"
NO_TABLES = "the simulator reads no WAL as tables"

STREAMING = (
    Mutant(
        "state-ahead-of-the-checkpoint",
        "change_ranges",
        "a state that has read more than a query asks for is refused",
        (Edit("ChangeRanges.write", "self._refuse_what_is_behind(begin)"),),
        turns_red=SPARK + "the_state_follows_what_is_committed_and_the_spool_is_emptied",
        why_named=NO_TABLES,
    ),
    Mutant(
        "range-repeats-what-came-before",
        "change_ranges",
        "a state that lags gives nothing of the ranges before",
        (
            Edit(
                "ChangeRanges.write",
                "SpooledChanges(self._state, begin)",
                "SpooledChanges(self._state)",
            ),
        ),
        turns_red=SPARK + "a_death_at_any_step_repeats_a_batch_as_it_was[written]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "finished-ranges-stay-in-the-spool",
        "change_ranges",
        "the files of a range go when Spark has committed it",
        (Edit("ChangeRanges.finish", "self._spool.remove(name)", "pass"),),
        turns_red=SPARK + "the_state_follows_what_is_committed_and_the_spool_is_emptied",
        why_named=NO_TABLES,
    ),
)
