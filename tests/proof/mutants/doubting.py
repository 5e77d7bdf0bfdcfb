"""Mutants of replay's doubts: what it does not read is named, and no answer is complete without it."""

from __future__ import annotations

from tests.proof.mutants.mutant import APPLY, Edit, FastEdit, Mutant

METHODS = "tests/replay/test_access_methods_postgres.py::test_"
INCOMPLETE = "tests/replay/test_incomplete_changes_postgres.py::test_"
REDONE = "tests/replay/test_compiled_redo.py::test_"
FILES = "tests/history/test_changed_files.py::test_"
STATE = "tests/replay/test_change_stream_state.py::test_"
NO_TABLES = "the simulator has no tables"

DOUBTING = (
    Mutant(
        "other-methods-are-read-as-heap",
        "catalog",
        "a table of another access method than heap is refused by name",
        (Edit("Catalog.table", "found.access_method != HEAP", "False"),),
        turns_red=METHODS + "a_table_is_read_while_it_was_heap",
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
                "        return redone(BROKEN, True, NOT_SANE)\n    if is_init",
                "        return redone(state, False, 0)\n    if is_init",
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
)
