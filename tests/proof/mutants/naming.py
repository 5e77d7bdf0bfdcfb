"""Mutants of replay's values: names of objects and databases, and bytes that are damaged."""

from __future__ import annotations

from tests.proof.mutants.analysing import NO_TABLES, UNDO
from tests.proof.mutants.mutant import Edit, Mutant

TYPES = "tests/replay/test_described_types.py::test_"
NAMES = "tests/replay/test_object_names.py::test_"
AGAIN = "tests/replay/test_oids_again_postgres.py::test_"
STEPS = "tests/replay/test_file_steps.py::test_"
FEW = "tests/replay/test_undo_few_columns_postgres.py::test_"
DAMAGED = "tests/replay/test_damaged_values.py::test_"

NAMING = (
    Mutant(
        "public-names-hide-behind-nothing",
        "shown_names",
        "a name of public is known only with the names of pg_catalog that may hide it",
        (
            Edit(
                "Namer.shown",
                "self.quoted(each.name) if is_first else None",
                "self.quoted(each.name)",
            ),
        ),
        turns_red=TYPES + "a_configuration_is_a_name_where_it_is_known_what_hides_it",
        why_named=NO_TABLES,
    ),
    Mutant(
        "overloaded-function-by-name-alone",
        "shown_names",
        "a name that means several functions is shown with its schema",
        (
            Edit(
                "Namer.unique",
                "list(in_path.get(each.name, {}).values()) == [each.oid]",
                "each.oid in in_path.get(each.name, {}).values()",
            ),
        ),
        turns_red=NAMES + "a_name_that_means_several_functions_has_its_schema",
        why_named=NO_TABLES,
    ),
    Mutant(
        "overloaded-function-into-sql",
        "shown_names",
        "SQL has the number of a function whose name means several",
        (Edit("Namer.unique_for_sql", "counts[each.schema, each.name] == 1", "True"),),
        turns_red=NAMES + "sql_has_names_that_input_takes_for_one_object",
        why_named=NO_TABLES,
    ),
    Mutant(
        "numbers-for-names-are-all",
        "object_names",
        "a number stands for an object that is not there only if all of them are known",
        (Edit("ObjectNames.name", "oid in names or not found.are_all", "oid in names"),),
        turns_red=NAMES + "a_number_in_catalogs_in_parts_is_not_known",
        why_named=NO_TABLES,
    ),
    Mutant(
        "namesakes-of-a-database-are-silent",
        "changes",
        "a database that had the name before, with changes in the range, is named",
        (Edit("ChangeReader._namesakes", "own.is_by_number", "True"),),
        turns_red="tests/replay/test_undescribed_postgres.py"
        "::test_a_database_that_had_the_name_before_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "names-in-sql-by-the-search-path",
        "catalog",
        "undo writes names with their schemas, since the reader's path may find others",
        (Edit("Catalog.in_names_of", "later.types.names.for_sql()", "later.types.names"),),
        turns_red=UNDO + "values_that_are_names_come_back_on_another_search_path",
        why_named=NO_TABLES,
    ),
    Mutant(
        "rows-in-sql-by-the-search-path",
        "table_at",
        "the SQL of table-at has names with their schemas",
        (Edit("TableAt.open", "printer.for_sql() if is_for_sql else printer", "printer"),),
        turns_red=UNDO + "sql_of_a_table_is_in_the_names_of_its_lsn",
        why_named=NO_TABLES,
    ),
    Mutant(
        "damage-is-any-error",
        "value_text",
        "bytes of another layout raise the printer's own error",
        (
            Edit(
                "Printer.text",
                "(struct.error, LookupError, ValueError, OverflowError)",
                "ZeroDivisionError",
            ),
        ),
        turns_red=DAMAGED + "random_bytes_raise_the_decoders_own_error_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "part-beyond-its-value",
        "value_text",
        "a part of a value lies within it",
        (Edit("_short", "1 <= size <= len(data) - at", "True"),),
        turns_red=DAMAGED + "parts_end_within_their_value",
        why_named=NO_TABLES,
    ),
    Mutant(
        "damaged-changes-are-silent",
        "changes",
        "a damaged value of a change is named, and in the exit code",
        (Edit("ChangeReader._paired", "len((damaged := values.damaged()))", "False"),),
        turns_red="tests/replay/test_damaged_values_postgres.py"
        "::test_a_damaged_value_is_named_and_leaves_the_others",
        why_named=NO_TABLES,
    ),
    Mutant(
        "undone-values-have-old-names",
        "catalog",
        "undo writes values that are names as the catalogs at the end of the WAL have them",
        (Edit("Catalog.in_names_of", "later is not None", "False"),),
        turns_red=UNDO + "values_that_are_names_mean_what_they_meant_after_an_exchange",
        why_named=NO_TABLES,
    ),
    Mutant(
        "namesakes-are-not-said",
        "replay_commands",
        "a name that several tables had is not undone",
        (Edit("replay_commands._namesakes", "len(found) != 1", "False"),),
        turns_red=UNDO + "a_name_that_several_tables_had_is_not_undone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "an-oid-is-one-table",
        "table_lives",
        "a table is its OID until another one gets that OID",
        (Edit("TableLives.at", "begins[place - 1] if place else 0", "0"),),
        turns_red=AGAIN + "a_name_means_the_table_that_had_it_not_all_of_its_oid",
        why_named=NO_TABLES,
    ),
    Mutant(
        "copied-rows-begin-a-life",
        "table_lives",
        "a table's life begins after the end of all earlier ones of its OID",
        (Edit("TableLives.of", "named.begin > ended[oid]", "True"),),
        turns_red=AGAIN + "a_life_begins_after_the_end_of_all_before",
        why_named=NO_TABLES,
    ),
    Mutant(
        "undo-into-the-next-of-an-oid",
        "later_names",
        "undo writes no row of a dropped table into the one that got its OID",
        (
            Edit(
                "in_later_names",
                "lives.is_last(change.table.oid, change.commit.end_lsn)",
                "True",
            ),
        ),
        turns_red=AGAIN + "undo_does_not_put_the_rows_of_a_dropped_table_into_the_new_one",
        why_named=NO_TABLES,
    ),
    Mutant(
        "unknown-row-ends-a-table",
        "table_owners",
        "changes of a table are found after a row of pg_class that the WAL does not describe",
        (Edit("TableOwners.meant", "may_go_on and last[life] is named", "False"),),
        turns_red=AGAIN + "a_table_goes_on_if_the_wal_does_not_describe_its_new_row",
        why_named=NO_TABLES,
    ),
    Mutant(
        "temporary-tables-share-names",
        "table_owners",
        "a name means no temporary table",
        (Edit("TableOwners.of", "named.persistence != 't'", "True"),),
        turns_red=AGAIN + "a_temporary_table_makes_no_name_ambiguous",
        why_named=NO_TABLES,
    ),
    Mutant(
        "names-from-before-the-range",
        "table_owners",
        "a name means the tables that had it within the range",
        (Edit("TableOwners.meant", "named.end > start", "True"),),
        turns_red=AGAIN + "a_name_that_no_table_had_in_the_range_is_said",
        why_named=NO_TABLES,
    ),
    Mutant(
        "rows-without-columns-are-no-sql",
        "written_rows",
        "SQL for rows without columns makes as many rows",
        (Edit("inserts", "not names", "False"),),
        turns_red=FEW + "table_at_writes_rows_without_columns",
        why_named=NO_TABLES,
    ),
    Mutant(
        "truncated-rows-without-columns-are-lost",
        "later_names",
        "undo of TRUNCATE puts back rows without columns, too",
        (Edit("renamed", "not kept", "False"),),
        turns_red=FEW + "rows_without_stored_columns_come_back[]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "later-columns-set-nothing-apart",
        "later_names",
        "undo takes no row of several that a column added since sets apart",
        (
            Edit(
                "later_names._later",
                "tuple(a.name for a in after.values() if a.number not in numbers "
                "and (not a.generated))",
                "()",
            ),
        ),
        turns_red=FEW + "a_row_that_a_later_column_sets_apart_is_left_alone[id int]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-rewrite-is-a-number",
        "file_steps",
        "a file that a rewrite made is that of one table and one commit",
        (
            Edit(
                "FileSteps._is_copy",
                "(oid, after.relfilenode, lsn) in self.rewritten",
                "any(node == after.relfilenode for _, node, _ in self.rewritten)",
            ),
        ),
        turns_red=STEPS + "a_file_of_a_rewrite_elsewhere_is_no_rewrite_of_this_table",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-rewrite-repeats-itself",
        "file_steps",
        "a transient table gives its file away once",
        (Edit("_rewritten_in", "waiting.discard(place)\n", ""),),
        turns_red=STEPS + "a_number_that_is_used_again_is_another_file[True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "the-same-number-is-the-same-file",
        "change_reader",
        "a table that had a file's number before may get a new file of that number",
        (
            Edit(
                "change_reader.ChangeReader._files",
                "(node, tenure) not in own",
                "all(node != number for number, _ in own)",
            ),
        ),
        turns_red=STEPS + "no_truncate_is_taken_for_a_rewrite_with_its_number",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-file-has-one-owner",
        "relation_names",
        "find names the relation that had a file then, not the last one",
        (
            Edit(
                "Tenancy.has",
                "self.begin <= commit_lsn and self.after < commit_lsn <= self.until",
                "True",
            ),
        ),
        turns_red=AGAIN + "find_names_the_owner_that_a_file_had_then",
        why_named=NO_TABLES,
    ),
    Mutant(
        "names-of-now-are-of-all-times",
        "relation_names",
        "a name that a server has now is not that of an earlier file of the number",
        (Edit("_was_seen_between", "made is None and following is None", "True"),),
        turns_red=AGAIN + "names_of_now_are_not_those_of_a_file_that_was_made_again",
        why_named=NO_TABLES,
    ),
    Mutant(
        "replayed-names-reach-back",
        "relation_names",
        "a base backup does not name a file from before its own of that number",
        (Edit("Tenancy.has", "following.commit_lsn > self.known_from", "True"),),
        turns_red=AGAIN + "replayed_names_do_not_reach_back_beyond_a_new_file",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-truncation-with-new-rows-is-a-rewrite",
        "find",
        "a new file that begins with a row that was inserted is one of a TRUNCATE",
        (Edit("_how_files_went", "deeds.created & deeds.begun", "set()"),),
        turns_red="tests/history/test_find_postgres.py"
        "::test_a_truncated_table_with_new_rows_is_found_as_truncated"
        "[TRUNCATE n; INSERT INTO n VALUES (1)-truncate]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-copied-file-is-a-truncation",
        "find",
        "a file whose first page was copied holds the rows of before",
        (Edit("_begins", "kind == _INSERT | _INIT_PAGE", "kind & 7 == _INSERT"),),
        turns_red="tests/history/test_find_postgres.py"
        "::test_a_truncated_table_with_new_rows_is_found_as_truncated"
        "[ALTER TABLE n SET TABLESPACE away; INSERT INTO n VALUES (1)-rewrite]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "findings-in-doubt-are-left-out",
        "find",
        "find --relation NAME has what may be of the relation",
        (Edit("_Wanted.is_in", "self.may_be(file)", "False"),),
        turns_red=AGAIN + "names_of_now_are_not_those_of_a_file_that_was_made_again",
        why_named=NO_TABLES,
    ),
    Mutant(
        "tables-of-now-are-those-of-then",
        "replay_commands",
        "a server's table is not taken where the WAL has another one of its OID",
        (
            Edit(
                "refuse_another_table",
                "is_other or any(number > known.natts for number, *_ in now)",
                "False",
            ),
        ),
        turns_red=AGAIN + "a_table_of_the_server_is_not_that_of_its_oid_before",
        why_named=NO_TABLES,
    ),
    Mutant(
        "columns-added-since-were-there-then",
        "replay_commands",
        "a server's columns are not taken where the WAL has fewer",
        (Edit("refuse_another_table", "number > known.natts", "False"),),
        turns_red=AGAIN + "columns_of_now_are_not_those_that_the_wal_has_then[ADD c int DEFAULT 7]",
        why_named=NO_TABLES,
    ),
)
