"""Mutants of the redo of pages, of the values of their rows, and of mirrors in a lake."""

from __future__ import annotations

from tests.proof.mutants.mutant import APPLY, HEAP_PAGE, PAGE_RESETS, Edit, FastEdit, Mutant

HOSTILE = "tests/replay/test_compiled_redo.py::test_"
RESETS = "tests/replay/test_page_resets.py::test_"
MIRRORS = "tests/replay/test_lake_mirrors_postgres.py::test_"
NO_PAGES = "the simulator has no pages of tables"

REDOING = (
    Mutant(
        "redo-reads-beyond-the-wal",
        "heap_page",
        "a record that leads outside its bytes breaks its page",
        (FastEdit("if p < 0 or size < 0 or p > b.size - size:", "if False:", HEAP_PAGE),),
        turns_red=HOSTILE + "record_longer_than_the_wal_breaks_its_page",
        why_named=NO_PAGES,
    ),
    Mutant(
        "image-of-less-than-a-page",
        "apply",
        "an image and its hole are a page together",
        (FastEdit("if length + gap != PAGE_BYTES:", "if False:", APPLY),),
        turns_red=HOSTILE + "image_that_is_no_page_breaks_its_page",
        why_named=NO_PAGES,
    ),
    Mutant(
        "image-that-redo-does-not-restore-resets",
        "page_resets",
        "an image for comparison alone does not reset its page",
        (
            FastEdit(
                "return restores(log, k) or initialises(",
                "return log.blocks[k].flags & HAS_IMAGE or initialises(",
                APPLY,
            ),
        ),
        turns_red=RESETS + "pages_are_the_same_without_redo_before_their_last_reset[0]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "last-reset-is-left-out",
        "page_resets",
        "the last reset of a page itself is redone",
        (FastEdit(".prev_lsn < lsns[at]:", ".prev_lsn <= lsns[at]:", PAGE_RESETS),),
        turns_red=RESETS + "pages_are_the_same_without_redo_before_their_last_reset[0]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "reset-after-the-place-counts",
        "page_resets",
        "a pass up to an earlier LSN leaves nothing out for a reset after it",
        (Edit("PageResets.last_of", "self._end_lsn > until", "False"),),
        turns_red=RESETS + "a_pass_that_ends_earlier_leaves_nothing_out",
        why_named=NO_PAGES,
    ),
    Mutant(
        "resets-without-a-bound",
        "page_resets",
        "memory for resets has a bound",
        (Edit("PageResets.add", "self._count > self._rows_max", "False"),),
        turns_red=RESETS + "the_oldest_resets_go_where_there_are_too_many",
        why_named=NO_PAGES,
    ),
    Mutant(
        "torn-records-are-redone",
        "table_at",
        "the second walk ends where the first one ended, which checked all CRCs",
        (Edit("TableAt.until", "min(self.lsn, self.ends_before)", "self.lsn"),),
        turns_red="tests/replay/test_torn_ends_postgres.py::test_a_torn_image_changes_no_row",
        why_named=NO_PAGES,
    ),
    Mutant(
        "deferrable-key-finds-rows",
        "catalog_history",
        "a DEFERRABLE primary key is none, since two rows may have the same",
        (
            Edit(
                "CatalogHistory.at",
                'row["indisprimary"] and row["indimmediate"]',
                'row["indisprimary"]',
            ),
        ),
        turns_red=MIRRORS + "a_table_that_a_mirror_cannot_follow_is_refused_by_name[postponed]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "offsets-of-a-column-wrap-around",
        "columns_of_rows",
        "rows of more bytes than an Arrow column holds come in parts",
        (Edit("columns_of_rows._refuse_large", "size > COLUMN_MAX_BYTES", "False"),),
        turns_red="tests/replay/test_large_columns_postgres.py"
        "::test_rows_beyond_a_columns_bytes_come_in_parts_and_whole",
        why_named=NO_PAGES,
    ),
    Mutant(
        "keys-of-times-are-pythons",
        "large_folds",
        "a key of infinity or of a time BC has a share, which Python's times do not have",
        (Edit("large_folds._sums", "pa.types.is_temporal(column.type)", "False"),),
        turns_red="tests/replay/test_change_folds.py"
        "::test_a_key_of_times_that_python_lacks_has_a_share",
        why_named=NO_PAGES,
    ),
    Mutant(
        "greatest-interval-is-infinity",
        "value_text",
        "the greatest interval is a number before 17, and infinity since",
        (Edit("Printer._text", "0 < self.types.major < 17", "False"),),
        turns_red="tests/replay/test_catalogs_postgres.py"
        "::test_the_greatest_interval_is_no_infinity_before_17",
        why_named=NO_PAGES,
    ),
    Mutant(
        "column-is-its-name",
        "lake_mirrors",
        "a column that was dropped and added again is another one for a mirror",
        (Edit("Mirrors._refuse_schemas", "self._numbers.refuse_others(piece.table)", "None"),),
        turns_red=MIRRORS + "a_table_that_a_mirror_cannot_follow_is_refused_by_name[again]",
        why_named=NO_PAGES,
    ),
)
