"""Mutants of what the commands of an operator refuse, repair and print."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

REPAIR = "tests/archive/test_repair_postgres.py::test_"
CHECK = "tests/cli/test_check.py::test_"
NO_COMMANDS = "the simulator runs daemons and no commands of an operator"
GATE = "tests/cli/test_gate_wait.py::test_"
COMMANDS = "tests/cli/test_operators_commands.py::test_"

COMMANDING = (
    Mutant(
        "option-is-a-value",
        "options",
        "an option of the command is no value of another one",
        (
            Edit(
                "EnvironmentOption.type_cast_value",
                "any(value in each.opts for each in ctx.command.params)",
                "False",
            ),
        ),
        turns_red="tests/cli/test_usage_errors.py::test_"
        "an_option_that_stands_where_a_value_belongs_is_named",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "members-complete-to-nothing",
        "default_command",
        "the tab key after `walkeeper members` offers its commands",
        (Edit("DefaultCommand.parse_args", "not args and ctx.resilient_parsing", "False"),),
        turns_red="tests/cli/test_completion.py::test_"
        "each_option_and_each_command_is_completed[members-]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "members-without-options",
        "default_command",
        "the tab key after `walkeeper members --` offers the options of `show`",
        (Edit("DefaultCommand.shell_complete", 'not incomplete.startswith("-")', "True"),),
        turns_red="tests/cli/test_completion.py::test_"
        "a_group_with_a_default_completes_the_options_of_that_command[members-show]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "repair-against-the-receipt",
        "archive_repair",
        "an archive takes no WAL that its receipt contradicts",
        (
            Edit(
                "archive_repair.repair",
                "receipt is not None and receipt.wal_sha256 != sha256_of(wal)",
                "False",
            ),
        ),
        turns_red=REPAIR + "wal_that_is_not_the_receipts_repairs_nothing",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "repair-with-wal-of-another-system",
        "archive_repair",
        "a segment that is missing is put back from this archive's system alone",
        (
            Edit(
                "archive_repair.repair",
                "flaw_of(archive, file, wal, segment_bytes)",
                "None",
            ),
        ),
        turns_red=REPAIR + "wal_of_another_system_repairs_nothing",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "repair-removes-a-whole-file",
        "archive_repair",
        "a file whose upload has ended meanwhile stays in the archive",
        (
            Edit(
                "archive_repair.repair", "receipt is not None and _is_whole(archive, file)", "False"
            ),
        ),
        turns_red=REPAIR + "a_file_whose_upload_has_ended_meanwhile_stays",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "repair-leaves-a-receipt-alone",
        "archive_repair",
        "a repair ends only when the archive has the file's object",
        (Edit("archive_repair.repair", "not _is_whole(archive, file)", "False"),),
        turns_red=REPAIR + "a_receipt_that_comes_while_its_object_is_removed_is_no_repair",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "repair-asks-safekeepers-of-another-log",
        "archive_repair",
        "an archive is repaired from the safekeepers of its own log",
        (Edit("archive_repair.refuse_another_log", "int(found) != system_id", "False"),),
        turns_red=REPAIR + "safekeepers_of_another_log_are_refused_at_once[another system]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "repair-overlooks-missing-segments",
        "archive_repair",
        "a segment that is missing between others is put back",
        (Edit("archive_repair._missing", "missing.append(file)"),),
        turns_red=REPAIR + "damaged_and_missing_segments_come_back",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "removed-files-are-damage",
        "archive",
        "`archive verify` reports no file that is removed while it reads",
        (Edit("verification._examine", "_is_removed(archive, file)", "False"),),
        turns_red="tests/archive/test_verification.py::test_"
        "a_file_that_is_removed_during_the_comparison_is_no_problem",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "half-removed-tails-are-damage",
        "archive",
        "a tail that a later one replaces is not damaged",
        (Edit("Archive.read", "file.kind is not Kind.PARTIAL", "True"),),
        turns_red="tests/archive/test_archive.py::test_"
        "a_tail_that_a_later_one_replaces_meanwhile_is_read_from_that_one",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "stale-listings-are-read-for-ever",
        "archive",
        "the search for a tail ends though the store's listings are old",
        (Edit("Archive.fetch_tail", "range(TAIL_READS_MAX)", "iter(int, 1)"),),
        turns_red="tests/archive/test_archive.py::test_"
        "listings_that_stay_older_than_the_store_are_an_error",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "check-ends-with-the-best",
        "check",
        "the worst finding gives the exit code of `check`",
        (
            Edit(
                "finding.worst",
                "max(faults, default=Grade.OK)",
                "min(faults, default=Grade.OK)",
            ),
        ),
        turns_red=CHECK + "the_worst_finding_gives_the_exit_code",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "ignored-failure-does-not-count",
        "check",
        "a check that failed counts, whatever `--ignore` names",
        (
            Edit(
                "finding.counts",
                "finding.grade is Grade.FAILED",
                "finding.grade is Grade.FAILED and finding.check not in ignored",
            ),
        ),
        turns_red=CHECK + "an_ignored_warning_does_not_count_and_a_failure_always_does",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "gate-gives-up",
        "closed_start",
        "`gate` waits for the quorum without a limit",
        (Edit("closed_start.wait_durable", "timeout=NO_LIMIT_S", "timeout=None"),),
        turns_red=GATE + "the_wait_for_the_quorum_outlives_the_limit_of_a_statement",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "gate-trusts-rules-that-are-not-loaded",
        "closed_start",
        "`gate` goes on with a server only if that has loaded the closed rules",
        (Edit("closed_start._refuse_open", "loaded_s <= changed_s", "False"),),
        turns_red=GATE + "a_server_that_runs_is_taken_for_closed_only_if_its_rules_are_in_force",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "gate-overlooks-a-client",
        "closed_start",
        "`gate` goes on with a server only if no other role is connected still",
        (Edit("closed_start._refuse_open", "found is not None", "False"),),
        turns_red=GATE + "a_server_that_runs_is_taken_for_closed_only_if_its_rules_are_in_force",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "paused-standby-takes-over",
        "switchover",
        "`switchover` stops no primary for a standby whose replay is paused or delayed",
        (Edit("switchover.reason_against", "state.held_back", "''"),),
        turns_red="tests/cli/test_switchover_steps.py::test_"
        "a_standby_that_replays_nothing_is_refused",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "old-primary-after-the-promotion",
        "switchover",
        "after a promotion no remedy of `switchover` is to start the old primary",
        (Edit("switchover.switch_over", "_going_on(PROMOTED, say)", "_going_on(STOPPED, say)"),),
        turns_red="tests/cli/test_switchover_steps.py::test_"
        "an_error_names_the_way_on_that_fits[_promote-leave the old]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "marker-across-a-page",
        "check",
        "the marker's record crosses no page, so its text stands in WAL without a break",
        (Edit("marker._emitted", "lsn % WAL_PAGE_BYTES >= MESSAGE_BYTES_MAX", "True"),),
        turns_red="tests/cli/test_marker.py::test_a_marker_that_crosses_a_page_is_written_again",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "check-overlooks-a-full-disk",
        "check",
        "`check` warns of a disk with little space",
        (Edit("check.status_checks._space", "free / size < FREE_SHARE_MIN", "False"),),
        turns_red=CHECK
        + "a_fault_is_a_warning_with_a_reason_and_a_remedy"
        + "[facts0-disk space-safekeeper 2 has 9.0 GB of 100.0 GB free]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "grants-of-one-version",
        "attach",
        "the printed privileges are those of the server's version",
        (Edit("retention_slots.retention_functions", "version >= FLUSH_SINCE", "False"),),
        turns_red="tests/cli/test_grants.py::test_"
        "a_role_with_the_printed_grants_attaches_and_detaches",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "operators-command-blocks-the-loop",
        "operators_commands",
        "the caller's other tasks run while a command of the operator does",
        (
            Edit(
                "operators_commands._ended",
                "await asyncio.to_thread(process.communicate, timeout=timeout_s)",
                "process.communicate(timeout=timeout_s)",
            ),
        ),
        turns_red=COMMANDS + "other_tasks_run_while_a_command_does",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "operators-command-outlives-its-limit",
        "operators_commands",
        "a command of the operator is killed when its caller is cancelled",
        (
            Edit(
                "operators_commands._ended",
                "asyncio.CancelledError",
                "asyncio.InvalidStateError",
            ),
        ),
        turns_red=COMMANDS + "a_command_is_killed_if_its_caller_is_cancelled",
        why_named=NO_COMMANDS,
    ),
)
