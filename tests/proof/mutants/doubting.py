"""Mutants of replay's doubts: what it does not read is named, and in the exit code."""

from __future__ import annotations

from tests.proof.mutants.mutant import APPLY, WHOLE_PAGES, Edit, FastEdit, Mutant

METHODS = "tests/replay/test_access_methods_postgres.py::test_"
INCOMPLETE = "tests/replay/test_incomplete_changes_postgres.py::test_"
REDONE = "tests/replay/test_compiled_redo.py::test_"
COPIED = "tests/replay/test_copied_tablespaces_postgres.py::test_"
FILES = "tests/history/test_changed_files.py::test_"
DAMAGED = "tests/replay/test_damaged_catalogs_postgres.py::test_"
STATE = "tests/replay/test_change_stream_state.py::test_"
TAIL = "tests/history/test_damaged_tail.py::test_"
OTHERS = "tests/replay/test_other_bases_postgres.py::test_"
BASES = "tests/replay/test_bases_postgres.py::test_"
START = "tests/replay/test_open_at_start.py::test_"
UNDESCRIBED = "tests/replay/test_undescribed_postgres.py::test_"
XIDS = "tests/replay/test_xids.py::test_"
EXCHANGED = "tests/replay/test_exchanged_files_postgres.py::test_"
GROWN = "(held[begin:end] != now.payload(end)[begin:end]).any()"
NO_TABLES = "the simulator has no tables"
NO_ARCHIVES = "the simulator reads no archives"

DOUBTING = (
    Mutant(
        "damage-ends-the-log",
        "reading",
        "a record that a later one names is damaged, and not the log's end",
        (Edit("Reading._evidence_of_more", "later is None", "True"),),
        turns_red=TAIL + "a_damaged_record_that_a_later_one_names_is_damage",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "wal-written-meanwhile-is-damage",
        "reading",
        "a place that a server has written since is the log's end of before",
        (Edit("Reading._has_grown", GROWN, "False"),),
        turns_red=TAIL + "wal_that_a_server_writes_meanwhile_is_no_damage",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "a-lost-place-counts-as-written",
        "reading",
        "a place that stays as it is was lost, also if a server writes behind it",
        (Edit("Reading._has_grown", GROWN, "True"),),
        turns_red=TAIL + "wal_that_a_server_writes_meanwhile_is_no_damage",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "lost-records-end-the-log",
        "log_end",
        "a whole record that follows a lost one tells that the log went on",
        (Edit("log_end.later_record", "_is_whole(payload[start:])", "False"),),
        turns_red=TAIL + "a_record_behind_lost_ones_tells_of_them",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "a-number-tells-of-a-record-that-is-not-there",
        "log_end",
        "behind zeros only a record with a valid CRC tells that the log went on",
        (Edit("log_end.later_record", "torn and link == lsn", "link == lsn"),),
        turns_red=TAIL + "wal_of_another_place_and_numbers_of_rows_are_no_later_record",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "numbers-of-rows-are-records",
        "log_end",
        "only a record with a valid CRC tells of another one before it",
        (Edit("log_end.later_record", "_is_whole(payload[start:])", "True"),),
        turns_red=TAIL + "wal_of_another_place_and_numbers_of_rows_are_no_later_record",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "promised-wal-ends-early",
        "reading",
        "WAL that ends before the LSN of its name or receipt is damaged",
        (Edit("Reading._evidence_of_more", "segment.known_end_lsn > lsn", "False"),),
        turns_red=TAIL + "an_archive_that_has_more_by_its_names_is_damaged",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "doubled-rows-of-catalogs-are-chosen",
        "catalog_history",
        "two visible rows of a catalog with one key are refused",
        (Edit("CatalogHistory._rows", "len(chosen) == 1", "False"),),
        turns_red="tests/replay/test_bases_postgres.py"
        "::test_two_visible_rows_of_one_oid_are_refused",
        why_named=NO_TABLES,
    ),
    Mutant(
        "rows-behind-a-gap-are-refused",
        "catalog_history",
        "rows behind WAL that was passed over may come twice",
        (Edit("CatalogHistory._rows", "not self.has_gaps", "True"),),
        turns_red="tests/replay/test_bases_postgres.py"
        "::test_two_visible_rows_of_one_oid_are_refused",
        why_named=NO_TABLES,
    ),
    Mutant(
        "last-multixact-has-one-member",
        "base",
        "the members of a backup's last multixact are read to their end",
        (Edit("BaseDirectory.updater", "count()", "range(1)"),),
        turns_red="tests/replay/test_bases_postgres.py"
        "::test_the_updater_in_the_last_multixact_of_a_backup_is_known",
        why_named=NO_TABLES,
    ),
    Mutant(
        "guessed-rows-are-certain",
        "row_versions",
        "a row whose transaction ended before the WAL is visible by a guess",
        (Edit("Versions.are_certain", "is_made & is_kept", "is_made | is_kept"),),
        turns_red="tests/replay/test_doubled_rows.py"
        "::test_hint_bits_and_commits_make_a_row_certain",
        why_named=NO_TABLES,
    ),
    Mutant(
        "damaged-pg-control-is-read",
        "base",
        "a pg_control without its CRC is refused",
        (Edit("BaseDirectory._control", "parse_control_data(control)", "None"),),
        turns_red="tests/replay/test_bases_postgres.py"
        "::test_a_damaged_pg_control_is_refused_with_the_remedy",
        why_named=NO_TABLES,
    ),
    Mutant(
        "other-methods-are-read-as-heap",
        "catalog",
        "a table of another access method than heap is refused by name",
        (Edit("Catalog.table", "found.access_method != HEAP", "False"),),
        turns_red=METHODS + "a_table_is_read_while_it_was_heap",
        why_named=NO_TABLES,
    ),
    Mutant(
        "later-xids-are-of-the-wal",
        "xids",
        "a transaction may have ended before the WAL while an older one was open",
        (Edit("Xids._older", "self._redo_lsn is None", "False"),),
        turns_red=BASES + "a_commit_just_before_the_wal_counts_beside_an_older_open_transaction",
        why_named=NO_TABLES,
    ),
    Mutant(
        "snapshot-is-sought-for-ever",
        "open_at_start",
        "WAL without a usable snapshot of running transactions costs bounded memory",
        (Edit("OpenAtStart.add", "len(self._known) > XIDS_MAX", "False"),),
        turns_red=START + "the_search_for_a_snapshot_ends[given0]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "xids-begin-again-unnoticed",
        "open_at_start",
        "xids begin again after their last one",
        (Edit("open_at_start._newest", "(xid - some + 0x80000000) & 0xFFFFFFFF", "xid"),),
        turns_red=START + "the_search_for_a_snapshot_ends[given1]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "half-a-transaction-is-taken-back",
        "undescribed",
        "undo fails if a transaction may have begun before the WAL",
        (Edit("replay_commands._changes", "missing += unsure", "pass"),),
        turns_red=UNDESCRIBED + "a_transaction_that_may_have_begun_before_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "large-objects-are-silent",
        "undescribed",
        "changed large objects are named",
        (Edit("heap_changes.heap_changes", "nodes == LARGE_OBJECTS", "False"),),
        turns_red=UNDESCRIBED + "large_objects_that_were_changed_are_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "rewritten-large-objects-are-silent",
        "undescribed",
        "pg_largeobject has another file after VACUUM FULL",
        (Edit("_has_large_objects", "o.oid == LARGE_OBJECTS", "False"),),
        turns_red=UNDESCRIBED + "large_objects_that_were_changed_are_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "index-passes-over-large-objects",
        "undescribed",
        "a segment with changed large objects is read",
        (Edit("described_files", "_has_large_objects(known, relation)", "False"),),
        turns_red=UNDESCRIBED + "large_objects_that_were_changed_are_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "earlier-index-hides-large-objects",
        "segment_index",
        "an index of an earlier version has the file of large objects among others",
        (Edit("Facts.heap_files", "LARGE_OBJECTS", "0"),),
        turns_red=UNDESCRIBED + "large_objects_that_were_changed_are_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "unknown-start-is-silent",
        "undescribed",
        "changes name the range in which transactions may have begun before the WAL",
        (Edit("range_of_unsure", "not len(unsure)", "True"),),
        turns_red=UNDESCRIBED + "a_transaction_that_may_have_begun_before_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "older-checkpoint-says-what-is-later",
        "open_at_start",
        "the next xid of a checkpoint that began before the WAL says nothing",
        (Edit("OpenAtStart._look_for_later", "redo_lsn >= begin_lsn", "True"),),
        turns_red=START
        + "the_first_next_xid_says_which_transactions_began_later[one that began before]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "dropped-files-are-silent",
        "heap_files",
        "rows that a TRUNCATE takes of a table that no catalog names are missing",
        (Edit("HeapFiles.touched", "relation.relfilenode >= FIRST_NORMAL_OID", "False"),),
        turns_red=UNDESCRIBED
        + "rows_that_go_with_a_file_are_missing_if_the_catalogs_are_not_known[TRUNCATE older]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-file-of-one-transaction-is-missing",
        "undescribed",
        "a file that one transaction made and dropped held no row that a snapshot sees",
        (Edit("undescribed_files", "relation not in heaps.made", "True"),),
        turns_red=UNDESCRIBED
        + "rows_that_go_with_a_file_are_missing_if_the_catalogs_are_not_known[TRUNCATE older]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-dropped-index-is-a-change",
        "undescribed",
        "a database whose indexes alone were rebuilt has no changes that are missing",
        (Edit("other_databases", "owner.kind not in KINDS_WITH_ROWS", "False"),),
        turns_red=UNDESCRIBED + "a_truncation_in_a_database_that_had_the_name_before_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "other-methods-are-silent",
        "undescribed",
        "changes name the tables of a range that were not heap's",
        (
            Edit(
                "undescribed.tables_of_other_methods",
                'named.persistence == "p"',
                'named.persistence == "x"',
            ),
        ),
        turns_red="tests/replay/test_access_methods_postgres.py"
        "::test_a_table_is_named_where_no_record_of_heap_changed_it",
        why_named=NO_TABLES,
    ),
    Mutant(
        "records-of-extensions-change-nothing",
        "apply",
        "a page that an extension's record changed is not known",
        (
            FastEdit(
                "        return redone(BROKEN, True, NOT_SANE)\n    if initialises",
                "        return redone(state, False, 0)\n    if initialises",
                APPLY,
            ),
        ),
        turns_red=REDONE + "record_of_an_extension_breaks_its_page[128]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "files-of-extensions-are-silent",
        "heap_changes",
        "a file that an extension's records name may have changed rows",
        (Edit("heap_changes.heap_changes", "rmid >= RMGR_CUSTOM_MIN", "rmid > 255"),),
        turns_red=FILES + "files_of_an_extensions_records_may_have_rows[128-0-2]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "doubtful-changes-exit-with-0",
        "incomplete_changes",
        "a change that is not complete is in the exit code",
        (Edit("incomplete_changes.incomplete", "coverage.has_all", "True"),),
        turns_red=INCOMPLETE + "a_value_of_an_unknown_type_is_in_the_exit_code",
        why_named=NO_TABLES,
    ),
    Mutant(
        "conditions-hide-doubts",
        "replay_commands",
        "a condition does not hide a change whose value is not known",
        (
            Edit(
                "replay_commands.changes",
                "incomplete(((c.table.shown, c.start_lsn, c.coverage) for c in found))",
                "incomplete(((c.table.shown, c.start_lsn, c.coverage) for c in found "
                "if is_of_row(c, list(map(_condition, where)))))",
            ),
        ),
        turns_red=INCOMPLETE + "a_condition_does_not_hide_what_it_cannot_see",
        why_named=NO_TABLES,
    ),
    Mutant(
        "states-of-earlier-versions",
        "page_file",
        "a state of an earlier version is refused",
        (Edit("PageFile.saved", "form != _FORM", "False"),),
        turns_red=STATE + "a_state_of_an_earlier_version_is_refused_with_the_remedy",
        why_named=NO_TABLES,
    ),
    Mutant(
        "pages-of-a-backup-are-not-checked",
        "base",
        "a page of a backup that is not as a server wrote it is not known",
        (Edit("BaseDirectory.damaged", "found != 0", "found > 1"),),
        turns_red=DAMAGED + "each_command_names_the_damaged_block[0]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "items-outside-their-page",
        "whole_pages",
        "an item that leads out of its page is damage",
        (FastEdit("if place + length > special:", "if False:", WHOLE_PAGES),),
        turns_red=DAMAGED + "a_page_without_the_layout_of_a_heap_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "broken-catalogs-are-read",
        "damaged_catalogs",
        "a catalog with a broken page is refused",
        (Edit("damaged_catalogs.refuse_broken", "number in broken", "False"),),
        turns_red=DAMAGED + "each_command_names_the_damaged_block[3]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "rows-without-their-layout-are-read",
        "catalog_rows",
        "a row that does not have the layout of its catalog is refused",
        (Edit("catalog_rows._refuse", "is_damaged.any()", "False"),),
        turns_red=DAMAGED + "flipped_rows_are_refused_or_read",
        why_named=NO_TABLES,
    ),
    Mutant(
        "columns-of-another-length",
        "catalog",
        "a column has the length and the alignment of its type",
        (
            Edit(
                "Catalog.table",
                "(own.length, own.alignment) != (each.length, each.alignment)",
                "False",
            ),
        ),
        turns_red=DAMAGED + "a_row_without_the_layout_of_its_catalog_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "damaged-map-of-catalogs",
        "base",
        "a map of catalogs with a wrong checksum is refused",
        (
            Edit(
                "base.checked_map",
                "crc32c(data[:body]) != int.from_bytes(data[body:body + 4], 'little')",
                "False",
            ),
        ),
        turns_red=DAMAGED + "a_damaged_map_of_catalogs_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "backup-of-another-branch",
        "segment_timelines",
        "a place is of the timeline that the path has there",
        (Edit("passes_through", "begin <= lsn < stretch.end_lsn", "True"),),
        turns_red="tests/history/test_archives.py"
        "::test_a_place_is_of_the_timeline_that_the_path_has_there",
        why_named=NO_ARCHIVES,
    ),
    Mutant(
        "wal-that-begins-behind-a-base",
        "catalog_history",
        "catalogs over a backup are of WAL that leads on from it",
        (Edit("CatalogHistory.read", "base.refuse_wal(plan)", "None"),),
        turns_red=OTHERS + "a_stopped_servers_directory_needs_the_wal_from_its_end_on",
        why_named=NO_TABLES,
    ),
    Mutant(
        "tablespaces-by-links-alone",
        "base",
        "a backup's map of tablespaces says where they are, and not the links",
        (Edit("Tablespaces.__init__", "path.is_file()", "False"),),
        turns_red=OTHERS + "a_backups_map_says_where_its_tablespaces_are",
        why_named=NO_TABLES,
    ),
    Mutant(
        "members-do-not-begin-again",
        "base",
        "the members of multixacts begin again after the last number",
        (
            Edit(
                "BaseDirectory.updater",
                "end - begin & _MEMBERS_MASK",
                "end - begin",
            ),
        ),
        turns_red=OTHERS + "updaters_are_known_where_multixacts_begin_again",
        why_named=NO_TABLES,
    ),
    Mutant(
        "unknown-updaters-did-nothing",
        "xids",
        "a multixact's updater that is not known is assumed to have committed",
        (Edit("Xids.updater", "NOT_KNOWN if found is None else found", "found or 0"),),
        turns_red=XIDS + "an_updater_that_is_not_known_counts_as_assumed",
        why_named=NO_TABLES,
    ),
    Mutant(
        "frozen-rows-begin-again",
        "row_versions",
        "a frozen row is older than a later transaction of its maker's number",
        (Edit("without_later_makers", "begins > seen_lsns", "begins < 0"),),
        turns_red=XIDS + "a_frozen_row_is_older_than_a_later_transaction_of_its_number",
        why_named=NO_TABLES,
    ),
    Mutant(
        "minimal-from-the-beginning",
        "bulk_loads",
        "a commit of catalogs' rows without invalidations is of wal_level = minimal",
        (Edit("BulkLoads._infer_level", "not are_listed[rows[0]]", "False"),),
        turns_red=OTHERS + "wal_that_begins_with_minimal_is_not_called_complete",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-file-is-its-last-owners",
        "change_events",
        "changes in a file are of the table that had it then",
        (Edit("tenures", "min(ended, following[0].begin)", "ALWAYS.until"),),
        turns_red=EXCHANGED + "a_file_is_a_tables_until_another_one_has_it",
        why_named=NO_TABLES,
    ),
    Mutant(
        "files-are-taken-over-in-silence",
        "change_events",
        "a table that takes over another one's file has changes that are missing",
        (
            Edit(
                "tenures",
                "following is not None and following[0].begin <= ended",
                "False",
            ),
        ),
        turns_red=EXCHANGED + "a_file_is_a_tables_until_another_one_has_it",
        why_named=NO_TABLES,
    ),
    Mutant(
        "links-of-a-copy-are-believed",
        "tablespaces",
        "a link that leads out of a backup needs a map or a manifest",
        (Edit("Tablespaces.__init__", "is_backup or self._has_another(link)", "False"),),
        turns_red=COPIED + "links_and_maps_to_the_running_server_are_refused[False]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "files-beside-the-manifest-are-believed",
        "tablespaces",
        "a file behind a link is as the backup's manifest has it",
        (Edit("Tablespaces.refuse_other", "not self._is_in_manifest(path)", "False"),),
        turns_red=COPIED + "a_manifest_says_whether_a_link_leads_to_the_copy",
        why_named=NO_TABLES,
    ),
    Mutant(
        "later-pages-of-a-tablespace-are-read",
        "tablespaces",
        "a backup has no page that is later than its end",
        (
            Edit(
                "Tablespaces.refuse_later",
                "(halves[:, 0] << 32 | halves[:, 1]) > end_lsn",
                "halves[:, 0] < 0",
            ),
        ),
        turns_red=COPIED + "links_and_maps_to_the_running_server_are_refused[True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "copies-of-stopped-servers-are-the-servers",
        "tablespaces",
        "a stopped server's links are its own if no other directory has them",
        (
            Edit(
                "Tablespaces._has_another",
                "(other / 'pg_tblspc' / link.name).resolve() == link.resolve()",
                "False",
            ),
        ),
        turns_red=COPIED + "a_copy_of_a_stopped_server_does_not_read_the_servers_tablespaces",
        why_named=NO_TABLES,
    ),
)
