"""Mutants of the streams of changes: ranges that come again, and what a mirror folds."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

SPARK = "tests/replay/test_spark_changes_stream.py::test_"
PARTS = "tests/replay/test_spooled_parts.py::test_"
LARGE = "tests/replay/test_large_mirrors_postgres.py::test_"
NO_TABLES = "the simulator reads no WAL as tables"

STREAMING = (
    Mutant(
        "state-ahead-of-the-checkpoint",
        "change_ranges",
        "a state that has read more than a query asks for is refused",
        (Edit("ChangeRanges._windows", "self._refuse_already_read(begin)"),),
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
    Mutant(
        "parts-of-a-window-stay-in-memory",
        "lake_mirrors",
        "parts of a window beyond a bound go to a file",
        (Edit("SpooledParts.take", "self.bytes_in_memory > self.bytes_max", "False"),),
        turns_red=PARTS + "sets_have_whole_commits_and_a_large_one_is_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "set-ends-with-its-window",
        "lake_mirrors",
        "a set of a window ends with its own last commit, so that a death loses no later one",
        (
            Edit(
                "SpooledParts.sets",
                "end if number == len(groups) else group[-1].last_lsn",
                "end",
            ),
        ),
        turns_red=PARTS + "sets_have_whole_commits_and_a_large_one_is_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "large-commit-is-folded-whole",
        "lake_mirrors",
        "a large transaction is folded by shares of its keys",
        (Edit("ChangeSet.is_large", "len(self.entries) > 1", "False"),),
        turns_red=PARTS + "sets_have_whole_commits_and_a_large_one_is_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "share-forgets-the-truncate",
        "lake_mirrors",
        "a share of a large transaction has no step from before its TRUNCATE",
        (Edit("LargeFold._fold", "self._cut is not None", "False"),),
        turns_red=LARGE + "a_large_transaction_is_mirrored_in_shares_and_once[Delta-mirror]",
        why_named=NO_TABLES,
    ),
)
