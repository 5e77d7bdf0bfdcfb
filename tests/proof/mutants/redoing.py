"""Mutants of the redo of pages, of the values of their rows, and of mirrors in a lake."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    APPLY,
    HEAP_PAGE,
    PAGE_RESETS,
    REDO_CALLS,
    WHOLE_PAGES,
    Edit,
    FastEdit,
    Mutant,
)

HOSTILE = "tests/replay/test_compiled_redo.py::test_"
RESETS = "tests/replay/test_page_resets.py::test_"
DAMAGED = "tests/replay/test_damaged_bases.py::test_"
PACKED = "tests/replay/test_packed_data.py::test_"
PAGES = "tests/pager/test_pages_postgres.py::test_"
BASES = "tests/replay/test_bases_postgres.py::test_"
REWRITTEN = "tests/replay/test_rewritten_catalogs_postgres.py::test_"
MOVED = "tests/replay/test_moved_streams_postgres.py::test_"
STEPS = "tests/replay/test_file_steps.py::test_"
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
        "image-of-other-blocks",
        "apply",
        "an image of a server with blocks of another size breaks its page",
        (FastEdit("if not has_own_size(page):", "if False:", APPLY),),
        turns_red=HOSTILE + "image_of_a_server_with_other_blocks_breaks_its_page[4096]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "lz4-of-another-size",
        "images",
        "data of lz4 that fills less than its value is damaged",
        (Edit("images.unpack", "loops.lz4_size(packed) != size", "False"),),
        turns_red=PACKED + "data_of_another_size_is_damaged[lz4]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pglz-goes-on-behind-its-value",
        "redo_calls",
        "data of pglz that goes on behind its value is damaged",
        (FastEdit("return p == source.size and q ==", "return q ==", REDO_CALLS),),
        turns_red=PACKED + "data_without_its_end_or_with_more_is_damaged[pglz]",
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
        "cut-labels-are-believed",
        "backup_label",
        "a backup_label that is cut is refused",
        (
            Edit(
                "backup_label.read_label",
                "timeline is None and not _OF_REWIND.search(text)",
                "False",
            ),
        ),
        turns_red=DAMAGED + "a_cut_label_is_refused[of a backup]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "manifests-are-not-summed",
        "tablespaces",
        "a manifest is as its own checksum says",
        (
            Edit(
                "Tablespaces._manifest",
                "hashlib.sha256(content[:end]).hexdigest() != known[1].decode()",
                "False",
            ),
        ),
        turns_red=DAMAGED + "a_damaged_or_cut_manifest_is_refused",
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
        "base-with-other-blocks",
        "base",
        "a backup of a server with blocks of another size is refused",
        (Edit("BaseDirectory.__init__", "known.block_bytes != PAGE_BYTES", "False"),),
        turns_red=BASES + "a_server_with_other_blocks_is_refused",
        why_named=NO_PAGES,
    ),
    Mutant(
        "files-behind-one-that-is-not-full",
        "base",
        "a relation ends with its first file that is not full",
        (Edit("BaseDirectory._files", "total == len(found) * self.file_blocks", "True"),),
        turns_red=BASES + "blocks_of_later_files_are_where_the_server_has_them",
        why_named=NO_PAGES,
    ),
    Mutant(
        "checksums-of-pages-are-not-compared",
        "whole_pages",
        "a page of a backup that does not have its checksum is damaged, of any relation",
        (
            FastEdit(
                "if have_checksums and get16(page, CHECKSUM) != checksum_of(page.at, block):",
                "if False:",
                WHOLE_PAGES,
            ),
        ),
        turns_red=HOSTILE + "page_of_a_file_needs_its_blocks_checksum_and_a_header",
        why_named=NO_PAGES,
    ),
    Mutant(
        "copied-databases-lack-damaged-pages",
        "store",
        "a damaged page of a database is damaged in its copy, too",
        (Edit("PageStore._copy_pages", "states == KNOWN", "np.ones(len(states), bool)"),),
        turns_red="tests/replay/test_catalogs_postgres.py::test_"
        "a_damaged_page_is_damaged_in_another_tablespace_too",
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
    Mutant(
        "stream-takes-damaged-pages-of-its-base",
        "bounded_pages",
        "a damaged page of the base backup has no chunk of a value",
        (Edit("BoundedPages.page_at", "state == KNOWN", "True"),),
        turns_red="tests/replay/test_bounded_pages.py::test_"
        "a_damaged_page_of_the_base_gives_no_chunk",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pager-serves-unlogged-pages",
        "folding",
        "the pager refuses a page of an unlogged relation",
        (Edit("folding.current", "base.is_unlogged(place)", "False"),),
        turns_red=PAGES + "a_page_of_an_unlogged_table_is_refused",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pager-serves-damaged-pages",
        "folding",
        "the pager refuses a damaged page of its base backup",
        (Edit("folding.current", "base.verifies(image, block)", "True"),),
        turns_red=PAGES + "a_damaged_page_of_the_base_backup_is_no_page[--data-checksums]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "damaged-pages-are-read-when-they-are-gone",
        "bounded_pages",
        "a damaged page that was cut off has no chunk of a value",
        (
            Edit(
                "BoundedPages._drop", "cut & ~np.isin(used['state'], (KNOWN, GONE))", "cut & False"
            ),
        ),
        turns_red="tests/replay/test_bounded_pages.py::test_"
        "a_damaged_page_that_was_cut_off_gives_no_chunk",
        why_named=NO_PAGES,
    ),
    Mutant(
        "rows-of-a-file-that-a-catalog-left",
        "catalog_history",
        "the rows of a catalog end with its file, which VACUUM FULL replaces",
        (
            Edit(
                "CatalogHistory._all",
                "np.minimum(own.end[chosen], nodes[relation.relfilenode])",
                "own.end[chosen]",
            ),
        ),
        turns_red=REWRITTEN + "a_rewritten_catalog_keeps_no_name_of_before",
        why_named=NO_PAGES,
    ),
    Mutant(
        "schemas-are-in-their-first-file",
        "catalog_history",
        "pg_class says in which file the names of schemas are",
        (
            Edit(
                "CatalogHistory._read_names", "nodes_by_rows(OIDS['pg_namespace'], classes)", "None"
            ),
        ),
        turns_red=REWRITTEN + "a_schema_of_a_rewritten_catalog_has_its_name",
        why_named=NO_PAGES,
    ),
    Mutant(
        "rewritten-catalogs-are-in-one-tablespace",
        "catalog_history",
        "a database that was moved had its rewritten catalogs in each of its tablespaces",
        (
            Edit(
                "CatalogHistory.rewritten",
                "spaces.get(database, (DEFAULT_TABLESPACE if database else GLOBAL_TABLESPACE,))",
                "sorted(spaces.get(database, (DEFAULT_TABLESPACE,)))[-1:]",
            ),
        ),
        turns_red=REWRITTEN + "a_moved_database_has_the_catalogs_that_were_rewritten_before",
        why_named=NO_PAGES,
    ),
    Mutant(
        "records-after-a-copied-database",
        "store",
        "the files that a copied database brings are redone from there on",
        (Edit("PageStore.stretches", "len(self.relations) > known", "False"),),
        turns_red=REWRITTEN + "records_of_a_copied_catalog_are_chosen[file_copy]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "others-chose-the-records-of-copies",
        "catalog_history",
        "catalogs are read again if others did not choose the records of a copied one",
        (
            Edit(
                "CatalogHistory.read",
                "set(store.relations) if decode is None else chosen",
                "set(store.relations)",
            ),
        ),
        turns_red=REWRITTEN + "records_of_a_copied_catalog_are_chosen[file_copy]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "schemas-have-their-last-names",
        "catalog_history",
        "a table is of the schema that had the name then",
        (
            Edit(
                "CatalogHistory._read_names",
                "schemas.within(row['relnamespace'], *span)",
                "[(*span, schemas.within(row['relnamespace'], *span)[-1][2])]",
            ),
        ),
        turns_red=REWRITTEN + "a_name_means_each_table_whose_schema_had_its_name_then",
        why_named=NO_PAGES,
    ),
    Mutant(
        "moved-databases-leave-files-behind",
        "store",
        "a file moves with its database before the row of pg_database says so",
        (Edit("PageStore._copy", "source[1] == target[1]", "False"),),
        turns_red=MOVED + "a_stream_takes_the_pages_of_a_moved_database_along[True-True-64]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "streams-leave-pages-behind",
        "bounded_pages",
        "a stream copies the pages of a database that moves, also those in its file",
        (Edit("BoundedPages._copy_pages", "range(0, len(blocks), step)", "range(0, 1, step)"),),
        turns_red=MOVED + "a_stream_takes_the_pages_of_a_moved_database_along[False-True-64]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "unseen-rows-make-no-doubt",
        "file_steps",
        "a commit with an unknown row of pg_class may have rewritten the table",
        (Edit("FileSteps._note_doubt", "lsn in unseen", "False"),),
        turns_red=STEPS + "wal_alone_takes_no_rewrite_for_a_truncate[VACUUM FULL]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "late-rows-make-no-doubt",
        "file_steps",
        "a row that is seen only later does not say until when rows were copied",
        (Edit("FileSteps._note_doubt", "0 < lsn <= version.first_lsn", "False"),),
        turns_red=STEPS + "a_file_may_be_a_copy_if_a_row_of_its_commit_is_not_known",
        why_named=NO_PAGES,
    ),
    Mutant(
        "copied-rows-are-steps",
        "file_steps",
        "a copy of a row of pg_class is no step of its table",
        (Edit("FileSteps.of", "step in found", "found[-1:] == [step]"),),
        turns_red=STEPS + "a_copied_row_is_no_step_of_its_table",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pager-reads-any-open-file",
        "base_pages",
        "no thread closes the file of the base backup that another one reads",
        (Edit("BasePages.read", "self._lock", "threading.Lock()"),),
        turns_red="tests/pager/test_base_pages.py::test_"
        "a_page_is_of_its_own_file_whatever_other_threads_read_meanwhile",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pager-ends-at-an-older-timeline",
        "following",
        "the pager leaves a safekeeper that is on an older timeline for the next one",
        (Edit("Following._check", "state.timeline < ours", "False"),),
        turns_red="tests/pager/test_following.py::test_"
        "a_safekeeper_that_missed_a_promotion_is_left_for_the_next_one",
        why_named=NO_PAGES,
    ),
    Mutant(
        "relations-lose-their-numbers",
        "store",
        "each relation of a store keeps its number when there is room for more",
        (Edit("PageStore._double_relations", "enumerate(self.relations)", "()"),),
        turns_red="tests/replay/test_many_relations.py::test_"
        "each_wanted_relation_keeps_its_number_and_its_level",
        why_named=NO_PAGES,
    ),
    Mutant(
        "full-tables-need-a-choice-before",
        "store",
        "the table of relations grows also before the first record that is chosen",
        (Edit("PageStore.stretches", "self._is_half_used()", "count"),),
        turns_red="tests/replay/test_many_relations.py::test_"
        "a_batch_that_begins_with_one_relation_too_many_is_chosen_whole[4]",
        why_named=NO_PAGES,
    ),
    Mutant(
        "toast-has-one-file",
        "described_tables",
        "values are found in each file that their TOAST table had",
        (Edit("DescribedTables._toasts", "(*found.get(oid, ()), file)", "(file,)"),),
        turns_red="tests/replay/test_rewritten_toast_postgres.py::test_"
        "values_are_found_in_each_file_of_their_toast_table",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pager-serves-the-running-server",
        "base_pages",
        "the pager refuses a page of a tablespace that is later than the base backup",
        (
            Edit(
                "BasePages.read",
                "self._spaces.refuse_later(path, page.reshape(1, -1), self.directory.end_lsn)",
            ),
        ),
        turns_red="tests/pager/test_base_pages.py::test_"
        "a_page_of_the_running_servers_tablespace_is_refused",
        why_named=NO_PAGES,
    ),
    Mutant(
        "pager-keeps-a-torn-record",
        "following",
        "WAL that the archive's timeline has left is cut off before more is written",
        (
            Edit(
                "Following._from_archive",
                "self._leave(plan.path, begin, self.archive.shown(''), plan.timeline)",
            ),
        ),
        turns_red="tests/pager/test_following.py::test_"
        "the_archives_newer_timeline_begins_before_an_unfinished_record",
        why_named=NO_PAGES,
    ),
)
