"""Mutants of history and replay: the index that spares reading, and the stream of changes."""

from __future__ import annotations

from tests.proof.mutants.mutant import SEGMENT_SUMS, Edit, FastEdit, Mutant

ARCHIVES = "tests/history/test_archives.py::test_"
STREAM = "tests/replay/test_change_stream_postgres.py::test_"
STATE = "tests/replay/test_change_stream_state.py::test_"
OPEN = "tests/replay/test_open_changes.py::test_"
LARGE = "tests/replay/test_open_changes_postgres.py::test_"
LOST = "tests/replay/test_lost_changes_postgres.py::test_"
UNDO = "tests/replay/test_undo_postgres.py::test_"
ONCE = "tests/replay/test_read_once.py::test_"
SUMS = "tests/history/test_segment_sums.py::test_"
HEADER = SUMS + "a_byte_of_a_page_header_is_judged_as_by_the_reader"
NO_TABLES = "the simulator reads no WAL as tables"

ANALYSING = (
    Mutant(
        "read-ahead-into-the-same-room",
        "read_ahead",
        "a segment that is decoded ahead does not overwrite the one that is consumed",
        (Edit("ReadAhead._begin", "index % 2", "0"),),
        turns_red="tests/replay/test_read_ahead.py::test_reading_ahead_gives_the_same_records",
        why_named=NO_TABLES,
    ),
    Mutant(
        "read-ahead-is-not-ahead",
        "read_ahead",
        "the next segment is decoded while one is consumed",
        (Edit("ReadAhead.of", "self._is_wanted(index + 1)", "False"),),
        turns_red="tests/replay/test_read_ahead.py"
        "::test_the_next_segment_is_read_while_one_is_consumed",
        why_named=NO_TABLES,
    ),
    Mutant(
        "lookup-of-transactions-is-stale",
        "xids",
        "a lookup of commits sees the transactions that ended since the last one",
        (Edit("Xids._set", "self._lookup = None\n", ""),),
        turns_red="tests/replay/test_xids.py::test_a_lookup_sees_what_ended_since_the_last_one",
        why_named=NO_TABLES,
    ),
    Mutant(
        "open-changes-stay-in-memory",
        "open_changes",
        "changes of open transactions beyond a bound go to the file",
        (Edit("OpenChanges.keep", "_bytes_of(self.near) > self.bytes_max", "False"),),
        turns_red=OPEN + "commits_come_in_their_order_and_a_large_one_in_parts",
        why_named=NO_TABLES,
    ),
    Mutant(
        "large-transaction-at-once",
        "open_changes",
        "a transaction larger than a part comes in several",
        (Edit("OpenChanges._group", "taken_bytes >= self._part_bytes", "False"),),
        turns_red=OPEN + "commits_come_in_their_order_and_a_large_one_in_parts",
        why_named=NO_TABLES,
    ),
    Mutant(
        "pieces-of-ended-transactions-stay",
        "open_changes",
        "a piece goes from the file when its transactions have ended",
        (Edit("OpenChanges.keep", "sorted(gone)", "[]"),),
        turns_red=OPEN + "what_was_rolled_back_leaves_nothing_and_is_not_read",
        why_named=NO_TABLES,
    ),
    Mutant(
        "crash-leaves-open-pieces",
        "open_changes",
        "a crash ended the transactions before the oldest active one",
        (
            Edit(
                "OpenChanges.keep",
                "(found.astype(np.int64) - oldest_active) % (1 << 32) < 1 << 31",
                "True",
            ),
        ),
        turns_red=OPEN + "a_crash_ended_the_transactions_before_the_oldest_active_one",
        why_named=NO_TABLES,
    ),
    Mutant(
        "taken-back-in-another-part",
        "open_changes",
        "an insertion in one part learns from another one that it was taken back",
        (Edit("OpenChanges._events", "len(source.undone)", "False"),),
        turns_red=OPEN + "an_insertion_learns_in_its_part_that_it_was_taken_back",
        why_named=NO_TABLES,
    ),
    Mutant(
        "far-chunks-are-not-read",
        "change_windows",
        "an old value of a large transaction may have its chunks in another part",
        (Edit("_Reader._fetch", "[chunks, self._waiting.fetch(relation)]", "[chunks]"),),
        turns_red=LARGE + "a_large_transaction_comes_in_parts_and_whole",
        why_named=NO_TABLES,
    ),
    Mutant(
        "truncation-in-each-part",
        "change_windows",
        "a TRUNCATE of a large transaction is in one part",
        (Edit("ChangeStream._changes", "part.is_of_one_commit", "False"),),
        turns_red=LARGE + "a_large_transaction_comes_in_parts_and_whole",
        why_named=NO_TABLES,
    ),
    Mutant(
        "tablespaces-are-homes",
        "base",
        "a database lives where its map of catalogs is, not in each tablespace with its tables",
        (Edit("BaseDirectory.databases", "(path / FILENODE_MAP).is_file()", "True"),),
        turns_red="tests/replay/test_bases_postgres.py"
        "::test_a_table_in_another_tablespace_does_not_move_its_database",
        why_named=NO_TABLES,
    ),
    Mutant(
        "lower-timeline-is-a-former-primarys",
        "plan",
        "WAL of another cluster on a timeline that is not read is an error",
        (Edit("_refuse_hidden_cluster", "other.system_id != cluster.system_id", "False"),),
        turns_red=ARCHIVES + "wal_that_pg_upgrade_put_on_a_lower_timeline_is_not_passed_over",
        why_named=NO_TABLES,
    ),
    Mutant(
        "any-range-is-a-cluster",
        "plan",
        "a range of a foreign segment alone is not read as that of an upgraded cluster",
        (Edit("_cluster_of_range", "e in ends", "True"),),
        turns_red=ARCHIVES + "a_segment_of_another_cluster_is_named_and_left_out",
        why_named=NO_TABLES,
    ),
    Mutant(
        "composite-by-lost-types",
        "value_text",
        "a value of a composite is read past the attributes that it has lost",
        (
            Edit(
                "Printer._composite",
                "self._span(each.length, each.alignment, data, at, packed=True)",
                "self._taken(each.type, data, at, packed=True)",
            ),
        ),
        turns_red="tests/replay/test_catalogs_postgres.py"
        "::test_attributes_that_a_composite_has_lost_are_passed_over",
        why_named=NO_TABLES,
    ),
    Mutant(
        "heirs-are-forgotten",
        "table_at",
        "a table that others inherit from is marked as being without their rows",
        (Edit("TableAt._doubts", "self.table.has_heirs", "False"),),
        turns_red="tests/replay/test_catalogs_postgres.py"
        "::test_a_table_with_heirs_says_that_their_rows_are_theirs",
        why_named=NO_TABLES,
    ),
    Mutant(
        "last-file-alone-tells-of-a-rewrite",
        "file_steps",
        "a transaction rewrote a table if any of its files for it did",
        (
            Edit(
                "FileSteps.rewriting",
                "{step.relfilenode for step in steps}",
                "{steps[-1].relfilenode}",
            ),
        ),
        turns_red="tests/replay/test_changes_ddl_postgres.py::test_no_wrong_values_beside_a_rewrite"
        "_that_moves_on_to_another_tablespace",
        why_named=NO_TABLES,
    ),
    Mutant(
        "rewrite-hides-what-follows",
        "file_steps",
        "records after pg_class has a rewritten file are changes of the transaction",
        (Edit("_rewritten_in", "version.first_lsn", "NEVER"),),
        turns_red=LOST + "changes_beside_a_rewrite_are_there[after a rewrite]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "created-table-loses-its-rows",
        "file_steps",
        "the rows of a table that its own transaction rewrote are insertions",
        (
            Edit(
                "FileSteps.is_created_in",
                "commit_lsn in self._created.get(oid, ())",
                "False",
            ),
        ),
        turns_red=LOST
        + "changes_beside_a_rewrite_are_there[of a table that the transaction created]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "truncate-after-a-rewrite-is-lost",
        "change_events",
        "a TRUNCATE in place after a rewrite is a change",
        (Edit("is_emptied_again", "len(_made_empty(store, file)) > 1", "False"),),
        turns_red=LOST + "changes_beside_a_rewrite_are_there[TRUNCATE after a rewrite]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "truncate-after-a-move-is-lost",
        "file_steps",
        "a TRUNCATE after another new file of the same transaction is a change",
        (
            Edit(
                "FileSteps.began_empty",
                "before is not None and before.relfilenode != step.relfilenode",
                "len(steps) == 1 and before is not None",
            ),
        ),
        turns_red=LOST + "changes_beside_a_rewrite_are_there[TRUNCATE after SET TABLESPACE]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "assumed-commit-is-believed",
        "row_versions",
        "an update of a catalog's row whose end nothing tells is no row",
        (
            Edit(
                "_Doubts.settled",
                "is_open & (is_seen | ~updated[order[starts]])",
                "is_open",
            ),
        ),
        turns_red="tests/replay/test_catalogs_in_doubt_postgres.py"
        "::test_a_file_of_a_transaction_whose_end_nobody_tells_is_not_believed[ROLLBACK]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "file-in-between-is-silent",
        "file_steps",
        "a file that came between two others of one transaction is named",
        (Edit("FileSteps.passed", "between and self._is_copy(oid, lsn, *new[-2:])", "False"),),
        turns_red=LOST + "changes_that_are_not_in_the_wal_are_named[TRUNCATE and SET TABLESPACE]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "set-logged-is-silent",
        "file_steps",
        "rows from when a table was unlogged are named as missing",
        (
            Edit(
                "FileSteps.passed",
                "is_logged_now or (between and self._is_copy(oid, lsn, *new[-2:]))",
                "between and self._is_copy(oid, lsn, *new[-2:])",
            ),
        ),
        turns_red=LOST + "changes_that_are_not_in_the_wal_are_named[SET LOGGED]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "bulk-loads-are-silent",
        "undescribed",
        "a range with WAL of wal_level = minimal is not whole",
        (Edit("range_without_loads", "since is None", "True"),),
        turns_red=LOST + "bulk_loads_without_wal_are_missing",
        why_named=NO_TABLES,
    ),
    Mutant(
        "unnamed-heirs-are-silent",
        "changes",
        "heirs of a table that was named are missing without their names",
        (
            Edit(
                "ChangeReader.undescribed",
                "unnamed_heirs(self.described.catalog(at), names, knows_all=self.base is not None)",
                "[]",
            ),
        ),
        turns_red=LOST + "heirs_that_are_not_named_are_missing",
        why_named=NO_TABLES,
    ),
    Mutant(
        "undo-by-earlier-names",
        "later_names",
        "undo names tables as they are later",
        (
            Edit(
                "_later",
                "replace(table, schema=known.schema, name=known.name, attributes=named, key=key, "
                "later_columns=added)",
                "replace(table, attributes=named, key=key, later_columns=added)",
            ),
        ),
        turns_red=UNDO + "exchanged_names_mean_the_tables_and_columns_that_were_changed",
        why_named=NO_TABLES,
    ),
    Mutant(
        "undo-into-another-column",
        "later_names",
        "undo leaves out a row of which a column was dropped since",
        (Edit("_later", "[a.name for a in table.columns if a.number not in after]", "[]"),),
        turns_red=UNDO + "no_other_table_or_column_of_the_name_gets_the_rows",
        why_named=NO_TABLES,
    ),
    Mutant(
        "range-backwards-is-empty",
        "commit_range",
        "a range that ends before it begins is an error",
        (
            Edit("CommitRange.between", "end_time < start_time", "False"),
            Edit("CommitRange.between", "high < low", "False"),
        ),
        turns_red="tests/replay/test_commit_range.py"
        "::test_a_range_that_ends_before_it_begins_is_an_error",
        why_named=NO_TABLES,
    ),
    Mutant(
        "fraction-is-cut-off",
        "time_text",
        "a time is the moment that PostgreSQL reads",
        (
            Edit(
                "parse_time",
                'round(float(f"0.{fraction[1:]}0") * 1e6)',
                'int(f"{fraction[1:]:0<6}"[:6])',
            ),
        ),
        turns_red="tests/history/test_history_command.py"
        "::test_a_time_is_the_one_that_postgresql_reads_or_refused"
        "[2024-05-01 12:30:00.0000015+02-2024-05-01T12:30:00.000002+02:00]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "range-from-before-the-base",
        "commit_range",
        "a range that begins before the backup does not count as whole",
        (Edit("CommitRange.between", "start_time < base.checkpoint_time", "False"),),
        turns_red="tests/replay/test_undescribed_postgres.py"
        "::test_a_range_that_begins_before_the_wal_is_in_the_exit_code[over a base]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "misspelt-table-is-left-out",
        "changes",
        "a name without a table is an error, and not a table without changes",
        (Edit("change_reader.ChangeReader.shares", "self._refuse_unknown(names, end)\n", ""),),
        turns_red="tests/replay/test_changes_ddl_postgres.py"
        "::test_a_name_without_a_table_is_an_error_beside_other_names",
        why_named=NO_TABLES,
    ),
    Mutant(
        "open-transactions-are-forgotten",
        "change_stream",
        "changes of a transaction that is still open wait for its commit in a later window",
        (
            Edit(
                "ChangeStream._changes",
                "waiting.keep(own, xids, made.oldest_active)",
            ),
        ),
        turns_red=STREAM + "windows_give_what_all_wal_gives[131072-tables1-False]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "state-of-another-scope",
        "change_stream",
        "a saved state is of one scope",
        (Edit("ChangeStream.open", "stream.scope != scope", "False"),),
        turns_red=STATE + "a_state_of_another_scope_is_refused",
        why_named=NO_TABLES,
    ),
    Mutant(
        "evicted-pages-are-lost",
        "change_stream",
        "a page that leaves memory is in the state's file, if it has changed",
        (
            Edit(
                "BoundedPages._evict",
                "self._write(np.flatnonzero(self.dirty[:used] & ~kept))",
            ),
        ),
        turns_red=STREAM + "windows_give_what_all_wal_gives[64-tables0-True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "pages-are-saved-before-the-state",
        "change_stream",
        "pages and the rest of the state are of one place of the log",
        (Edit("PageFile.mark_gone", "self._change()", "self._sql"),),
        turns_red=STATE + "pages_are_those_of_the_last_save",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-page-is-believed",
        "change_stream",
        "a page of the state's file counts only with its checksum",
        (Edit("PageFile._checked", "crc32(image) != checksum", "False"),),
        turns_red=STATE + "a_damaged_page_is_refused",
        why_named=NO_TABLES,
    ),
    Mutant(
        "catalogs-stay-though-one-changed",
        "change_stream",
        "catalogs of the window before serve as long as no catalog has changed",
        (
            Edit(
                "GrowingCatalogs.advance",
                "self.is_quiet = before is not None and history.is_like(before)",
                "self.is_quiet = before is not None",
            ),
        ),
        turns_red=STREAM + "a_log_that_has_become_quiet_has_a_position",
        why_named=NO_TABLES,
    ),
    Mutant(
        "read-once-tells-of-nothing-missing",
        "read_once",
        "changes that the WAL does not describe are an error, also where others decode it",
        (Edit("SharedChanges.undescribed", "reader.take_heaps(heaps)"),),
        turns_red=ONCE + "changes_that_the_wal_does_not_describe_are_refused",
        why_named=NO_TABLES,
    ),
    Mutant(
        "read-once-asks-for-all-at-once",
        "read_once",
        "the driver asks for no more than it has room for",
        (
            Edit(
                "_Controls.decode",
                "max(1, min(most, ROUND_BYTES * len(some) // max(came, 1)))",
                "most",
            ),
        ),
        turns_red=ONCE + "the_driver_asks_for_no_more_than_it_has_room_for[1]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "sums-of-a-page-of-another-place",
        "segment_sums",
        "a page counts on the short way only with the address of its place",
        (
            FastEdit(
                "header.lsn == <uint64_t>(source.first_lsn + page * PAGE_BYTES)",
                "True",
                SEGMENT_SUMS,
            ),
        ),
        turns_red=HEADER + "[40-8]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "sums-beyond-an-overwritten-record",
        "segment_sums",
        "the reader judges a record that a crash left unfinished",
        (FastEdit("if room.headers[k].info & FIRST_IS_OVERWRITE:", "if False:", SEGMENT_SUMS),),
        turns_red=HEADER + "[40-2]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "sums-end-before-later-wal",
        "segment_sums",
        "zeros end the log only if no page after them is of it, nor links to it",
        (
            FastEdit(
                "return not any_good(room, page, later, count, source, found.magic)",
                "return True",
                SEGMENT_SUMS,
            ),
            FastEdit(
                "any_good(room, page, 0, count, source, found.magic) or any_link(",
                "any_link(",
                SEGMENT_SUMS,
            ),
            FastEdit(
                "if low <= <int64_t>u64(payload + at) < high:",
                "if False:",
                SEGMENT_SUMS,
            ),
        ),
        turns_red=SUMS + "zeros_before_later_wal_are_no_end_of_the_log[1-20]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "sums-of-a-range-are-of-all",
        "segment_sums",
        "the short way is for segments that are asked for whole",
        (
            Edit(
                "walkeeper_history.rows.segment_sums._read",
                "segment.system_id is None or "
                "(segment.begin_lsn, segment.end_lsn) != (segment.first_lsn, end_lsn)",
                "False",
            ),
        ),
        turns_red=SUMS + "sums_of_a_log_are_those_of_the_reader[0]",
        why_named=NO_TABLES,
    ),
)
