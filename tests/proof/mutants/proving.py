"""Mutants of the index's proofs, and of what changes and their stream say that they lack."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

NO_TABLES = "the simulator has no tables"
INDEX = "tests/history/test_index_proof.py::test_"
LOST = "tests/replay/test_lost_changes_postgres.py::test_"
UNDESCRIBED = "tests/replay/test_undescribed_postgres.py::test_"

PROVING = (
    Mutant(
        "index-is-believed",
        "segment_index",
        "a row of an index counts only for the file that it was made of",
        (
            Edit(
                "ProvenIndex.row",
                "proof_of(self._files, segment.path, last) == self._proofs[row]",
                "True",
            ),
        ),
        turns_red=INDEX
        + "a_row_without_the_proof_of_its_file_does_not_count[of another file-None]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "proof-of-both-ends-alone",
        "segment_facts",
        "a proof has the page of the last record, in which histories differ that part before it",
        (Edit("segment_facts.place_of_last", "at - at % WAL_PAGE_BYTES", "0"),),
        turns_red="tests/history/test_proven_index_postgres.py"
        "::test_histories_that_part_within_a_segment_have_other_proofs",
        why_named=NO_TABLES,
    ),
    Mutant(
        "file-without-a-name-is-a-table",
        "described_tables",
        "a file without a row of pg_class is named as a file, which may be any table's",
        (Edit("DescribedTables.of_file", '"file"', '"table"'),),
        turns_red="tests/replay/test_described_tables.py"
        "::test_a_file_without_a_row_of_pg_class_is_no_table",
        why_named=NO_TABLES,
    ),
    Mutant(
        "stream-is-silent-of-its-start",
        "undescribed",
        "a stream names the range in which transactions may have begun before the WAL",
        (Edit("ChangeStream.advance_into", "reader.unsure(given)", "()"),),
        turns_red=UNDESCRIBED + "a_transaction_that_may_have_begun_before_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "stream-is-silent-of-recast-values",
        "lost_changes",
        "a stream says which values are not among its changes",
        (Edit("ChangeStream.advance_into", "reader.remarks()", "()"),),
        turns_red=LOST + "a_stream_says_what_its_changes_do_not_show[-append-True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "mirror-lacks-recast-values",
        "lost_changes",
        "a mirror says nothing of values that it reads again",
        (
            Edit(
                "Streaming._tell_of_missing",
                "[each for each in remarks if not each.is_read_again]",
                "remarks",
            ),
        ),
        turns_red=LOST + "a_stream_says_what_its_changes_do_not_show[delta:-mirror-False]",
        why_named=NO_TABLES,
    ),
)
