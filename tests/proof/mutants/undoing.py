"""Mutants of undo: what a row has to be before it is changed, and after all of the SQL."""

from __future__ import annotations

from tests.proof.mutants.analysing import NO_TABLES
from tests.proof.mutants.mutant import Edit, Mutant

TRIGGERS = "tests/replay/test_undo_triggers_postgres.py::test_"
INTERFERE = TRIGGERS + "rows_that_a_trigger_or_a_rule_changes_are_an_error"
LATER = "tests/replay/test_undo_later_columns_postgres.py::test_"
VALUES = "tests/replay/test_undo_values_postgres.py::test_"

UNDOING = (
    Mutant(
        "undone-rows-are-not-checked",
        "undo",
        "undo checks at its end that rows are as they were before",
        (Edit("undo_lines", "undo.rows.lines(undo.others)", "()"),),
        turns_red=TRIGGERS + "a_total_that_a_trigger_keeps_is_not_counted_twice",
        why_named=NO_TABLES,
    ),
    Mutant(
        "triggers-come-after-the-check",
        "undo",
        "triggers that wait for the commit come before the check of an undo",
        (Edit("undo_lines", "yield 'SET CONSTRAINTS ALL IMMEDIATE;'", ""),),
        turns_red=INTERFERE + "[deferred-delete-keyed]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "removed-rows-may-come-again",
        "checked_rows",
        "a row that an undo removed is not there at its end",
        (
            Edit(
                "CheckedRows.removed",
                "found.by_key[tuple(row[n] for n in key)] = None",
                "pass",
            ),
        ),
        turns_red=INTERFERE + "[puts back-insert-keyed]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "alike-rows-may-be-more",
        "checked_rows",
        "an undo wrote no more rows of the same values than it put back",
        (
            Edit(
                "CheckedRows._check_counts",
                "'sum(u.written) > COALESCE(sum(u.high), 0)'",
                "'false'",
            ),
        ),
        turns_red=INTERFERE + "[puts back-insert-keyless]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "alike-rows-may-be-fewer",
        "checked_rows",
        "each row that an undo put back is there, also without a key",
        (Edit("CheckedRows._check_counts", "'sum(u.own) < sum(u.low)'", "'false'"),),
        turns_red=INTERFERE + "[before-delete-keyless]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "one-key-has-one-text",
        "checked_rows",
        "a key that came back in another text is no row that an undo removed",
        (Edit("CheckedRows._check_by_key", "[still, *equal]", "[still]"),),
        turns_red=TRIGGERS + "a_key_may_come_back_in_another_text",
        why_named=NO_TABLES,
    ),
    Mutant(
        "columns-that-no-check-compares",
        "checked_rows",
        "triggers may not change columns that an undo cannot compare",
        (
            Edit(
                "CheckedRows._check_counts",
                "any(len(own) > len(names) for own in expected.counted)",
                "False",
            ),
        ),
        turns_red=TRIGGERS + "a_column_added_between_the_changes_of_alike_rows_needs_no_triggers",
        why_named=NO_TABLES,
    ),
    Mutant(
        "later-rows-go-with-the-row",
        "other_rows",
        "undo of an INSERT takes no later rows along that refer to it",
        (Edit("undo_lines", "undo.others.of_foreign_keys()", "()"),),
        turns_red=TRIGGERS
        + "later_rows_that_refer_to_the_row_do_not_go_with_it[plain-ON DELETE CASCADE-True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "other-rows-of-a-table-may-change",
        "checked_rows",
        "triggers write no other rows of the tables that an undo takes back",
        (Edit("OtherRows.wrote_more", "self._of(table)", "_Own(table, 1 << 60)"),),
        turns_red=TRIGGERS + "other_rows_of_the_table_are_not_changed[moves-True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "other-rows-of-a-table-may-go",
        "other_rows",
        "triggers remove no other rows of the tables that an undo takes back",
        (Edit("undo_lines", "undo.others.removed_lines()", "()"),),
        turns_red=TRIGGERS + "other_rows_of_the_table_are_not_changed[removes-True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "row-security-hides-rows-from-undo",
        "undo",
        "undo fails if a policy would hide rows from it",
        (Edit("undo_lines", "yield 'SET LOCAL row_security = off;'", ""),),
        turns_red=TRIGGERS + "a_role_from_which_rows_are_hidden_is_refused",
        why_named=NO_TABLES,
    ),
    Mutant(
        "later-columns-are-deleted-with-the-row",
        "born_rows",
        "undo of an INSERT deletes no row that was written anew after a column was added",
        (Edit("Writers._note", "change.table.later_columns", "False"),),
        turns_red=LATER + "a_row_of_which_a_later_column_may_have_changed_stays[note-keyed]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "updates-hide-later-columns",
        "born_rows",
        "undo of an UPDATE of an inserted row asks who wrote it, if the INSERT is undone, too",
        (Edit("Writers._follow", "key not in self._last", "True"),),
        turns_red=LATER
        + "updates_between_do_not_hide_a_change_of_a_later_column[values-True-keyed]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "overloads-are-the-same-value",
        "found_rows",
        "undo tells values apart that print alike: overloads in a regproc",
        (
            Edit(
                "Conditions._has_unique_texts",
                "not self.printer.kinds_of_names(attribute.type) & _SAME_TEXTS",
                "True",
            ),
        ),
        turns_red=VALUES + "a_value_that_prints_as_another_one_is_not_as_it_was_left"
        "[keyed-regproc-two(int)-two(text)]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "values-come-back-rounded",
        "later_names",
        "undo leaves out a row of which a column has fewer digits since",
        (Edit("_is_retyped", "after.typmod in (-1, before.typmod)", "True"),),
        turns_red=VALUES
        + "a_value_does_not_come_back_with_fewer_digits[numeric(9,3)-numeric(9,1)-False]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "blanks-do-not-count",
        "found_rows",
        "undo tells values of bpchar apart by the blanks at their end",
        (Edit("Conditions._has_unique_texts", "attribute.typmod == -1", "False"),),
        turns_red=VALUES + "blanks_at_the_end_of_a_value_without_a_length_count",
        why_named=NO_TABLES,
    ),
    Mutant(
        "values-from-before-using-come-back-in-silence",
        "later_names",
        "undo names a table that was rewritten after changes whose values come back",
        (Edit("rewritten_since", "each >= lsn", "False"),),
        turns_red=VALUES + "values_from_before_using_are_told_of[keyed]",
        why_named=NO_TABLES,
    ),
)
