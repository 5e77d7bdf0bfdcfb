"""Mutants of what an operator relies on: links, certificates, repair, check and metrics."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

LINKS = "tests/proposer/test_pure_linked_addresses.py::test_"
WATCH = "tests/common/test_certificate_watch.py::test_"
REPAIR = "tests/archive/test_repair_postgres.py::test_"
CHECK = "tests/cli/test_check.py::test_"
TIMES = "tests/safekeeper/test_disk_times.py::test_"
NO_ADDRESSES = "the simulated network has no addresses, only numbers of safekeepers"
NO_CERTIFICATES = "the simulated network has no TLS"
NO_COMMANDS = "the simulator runs daemons and no commands of an operator"
NO_FIGURES = "no oracle reads a figure of /metrics"
CONNECTING = "tests/proposer/test_connection_errors.py::test_"
AWAY = "tests/proposer/test_away_members.py::test_"
JOURNAL = "tests/common/test_journal_stream.py::test_"
DELIVERY = "tests/proposer/test_report_delivery.py::test_"
LACKING = "tests/safekeeper/test_fill_rate.py::test_a_log_that_lacks_wal_says_why_nothing_is_copied"
WAITING = "tests/proposer/test_waiting_commits.py::test_"
SILENT = "tests/cli/test_silent_members.py::test_"
ASKED = "tests/cli/test_asked_primary.py::test_"
GATE = "tests/cli/test_gate_wait.py::test_"
COMMANDS = "tests/cli/test_operators_commands.py::test_"
NO_STATUS = "no oracle reads what `status` prints"
NO_LANGUAGES = "the simulated primary answers in no language"

OPERATING = (
    Mutant(
        "away-since-now",
        "away_members",
        "a member is away since it was lost, not since the last look",
        (Edit("AwayMembers.observe", "self._since.get(address, now)", "now"),),
        turns_red=AWAY + "a_member_is_away_since_it_was_lost_and_keeps_its_id",
        why_named=NO_STATUS,
    ),
    Mutant(
        "lost-member-without-its-id",
        "away_members",
        "a member that is lost keeps its id in the reports",
        (Edit("MemberIds.of", "self._ids.get(address)", "None"),),
        turns_red=AWAY + "a_member_is_away_since_it_was_lost_and_keeps_its_id",
        why_named=NO_STATUS,
    ),
    Mutant(
        "wrong-address-is-a-member",
        "silent_members",
        "an address gets the id of a member only if the proposer misses that member",
        (
            Edit(
                "silent_members._name_last",
                'away is None or any(each["id"] in (number, None) for each in away)',
                "True",
            ),
        ),
        turns_red=SILENT + "an_address_that_no_member_has_gets_no_id",
        why_named=NO_STATUS,
    ),
    Mutant(
        "unknown-report-comes-first",
        "reporting",
        "a safekeeper of an older version learns the report on the primary",
        (
            Edit(
                "PrimaryReporter.reports",
                "return report, MembersReport(report.cluster, report.proposer_id, away)",
                "return MembersReport(report.cluster, report.proposer_id, away), report",
            ),
        ),
        turns_red=AWAY + "a_safekeeper_of_an_older_version_learns_the_report_on_the_primary",
        why_named=NO_STATUS,
    ),
    Mutant(
        "lost-member-that-answers-is-well",
        "log_verdict",
        "a member that answers and is not attached to the proposer is a warning",
        (Edit("log_verdict._lost", 'line.get("away_since")', "False"),),
        turns_red=SILENT + "a_member_that_answers_and_is_not_attached_is_a_warning",
        why_named=NO_STATUS,
    ),
    Mutant(
        "old-answer-is-a-sync-state",
        "reporting",
        "an answer from before the connection says nothing about commits",
        (Edit("PrimaryReporter.report", "commits.sync_state not in (None, ABSENT)", "True"),),
        turns_red=AWAY + "an_answer_from_before_the_connection_is_no_sync_state",
        why_named=NO_STATUS,
    ),
    Mutant(
        "hidden-state-is-no-stream",
        "status",
        "a role that sees no state believes the report of the proposer that WAL comes",
        (Edit("status.asked_primary", 'found["streaming"] is None', "False"),),
        turns_red=ASKED + "the_primary_answers_for_itself[hidden]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "own-failure-is-the-primarys",
        "unanswered",
        "a command without an SQL answer of its own does not say that the primary is down",
        (
            Edit(
                "unanswered.unanswered",
                'primary["connected"] and primary["error"]',
                "True",
            ),
        ),
        turns_red=ASKED + "a_command_without_an_answer_says_whose_connection_failed[well]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "unanswered-sql-is-not-reported",
        "reporting",
        "the proposer reports that the primary streams and answers no SQL",
        (Edit("PrimaryReporter.report", "clipped(commits.error)", "''"),),
        turns_red=AWAY + "a_primary_that_streams_and_answers_no_sql_is_reported_with_the_reason",
        why_named=NO_STATUS,
    ),
    Mutant(
        "damaged-member-is-replaced",
        "log_verdict",
        "no remedy is to replace a member while another one has damaged WAL",
        (Edit("log_verdict._members", "damaged > 1", "False"),),
        turns_red="tests/cli/test_damaged_members.py::test_"
        "damage_of_several_members_is_no_reason_to_replace_one",
        why_named=NO_STATUS,
    ),
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
        "hang-not-asked-about",
        "reporting",
        "the primary is asked for waiting commits as soon as WAL waits for a quorum",
        (Edit("PrimaryReporter.watch", "incidents.has_waited(loop.time())", "False"),),
        turns_red=WAITING + "wal_without_a_quorum_lets_the_primary_be_asked_soon[waits]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "end-of-a-hang-seen-late",
        "sync_state",
        "while commits wait, the primary is asked each second",
        (
            Edit(
                "SyncState.watch",
                "self.is_waited_for and not self.commits.waiting",
                "self.is_waited_for",
            ),
        ),
        turns_red=WAITING
        + "a_request_to_ask_soon_ends_the_pause_and_the_end_of_a_hang_is_seen_soon",
        why_named=NO_STATUS,
    ),
    Mutant(
        "slow-disk-unnamed",
        "log_verdict",
        "commits that wait name the members whose disks still have to sync WAL",
        (
            Edit(
                "log_verdict._unsynced",
                'line.get("write_lsn") not in (None, line["flush_lsn"])',
                "False",
            ),
        ),
        turns_red="tests/cli/test_hanging_disks.py::test_"
        "commits_that_wait_name_the_members_whose_disks_still_sync[two]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "hung-process-taken-for-dead",
        "safekeeper_client",
        "a safekeeper that accepts connections and does not answer hangs",
        (Edit("safekeeper_client.ask", "late = Hangs", "late = Unreachable"),),
        turns_red="tests/cli/test_hanging_disks.py::test_"
        "a_process_that_accepts_connections_and_does_not_answer_is_told_from_a_dead_one",
        why_named=NO_STATUS,
    ),
    Mutant(
        "stopped-copy-without-its-reason",
        "hosted_log",
        "a log with --fill-rate 0 says why older WAL is not copied to it",
        (
            Edit(
                "HostedLog.lacks_reason",
                'self.back_fill.problem if self._settings.fill_bytes_s else "--fill-rate is 0"',
                "self.back_fill.problem",
            ),
        ),
        turns_red=LACKING + "[rate]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "archive-not-named-as-the-reason",
        "hosted_log",
        "a log with an archive that lacks WAL names the archive, which has to have it first",
        (Edit("HostedLog.lacks_reason", "self.offload is not None", "False"),),
        turns_red=LACKING + "[archive]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "marks-beside-the-journal",
        "journal_stream",
        "only lines that go to journald begin with a priority",
        (
            Edit(
                "journal_stream.is_journal",
                'os.environ.get(VARIABLE) == f"{found.st_dev}:{found.st_ino}"',
                "VARIABLE in os.environ",
            ),
        ),
        turns_red=JOURNAL + "only_the_stream_that_systemd_named_is_the_journal",
        why_named=NO_STATUS,
    ),
    Mutant(
        "traceback-of-low-priority",
        "journal_stream",
        "each line of a traceback has the priority of its error",
        (
            Edit(
                "JournalFormatter.format",
                '"\\n".join(mark + line for line in self._inner.format(record).split("\\n"))',
                "mark + self._inner.format(record)",
            ),
        ),
        turns_red=JOURNAL + "each_line_of_a_traceback_has_it",
        why_named=NO_STATUS,
    ),
    Mutant(
        "refused-report-is-sent-again",
        "report_delivery",
        "a safekeeper of an older version gets the report that it refused once a greeting",
        (Edit("ReportDelivery.send", "reports if knows_all else reports[:1]", "reports"),),
        turns_red=DELIVERY + "an_older_safekeeper_gets_the_report_that_it_refused_once_a_greeting",
        why_named=NO_STATUS,
    ),
    Mutant(
        "older-safekeeper-stays-older",
        "report_delivery",
        "a safekeeper that was upgraded gets all reports again",
        (Edit("ReportDelivery.send", "greeted is not greeting", "greeted is None"),),
        turns_red=DELIVERY + "an_older_safekeeper_gets_the_report_that_it_refused_once_a_greeting",
        why_named=NO_STATUS,
    ),
    Mutant(
        "absent-safekeeper-is-older",
        "report_delivery",
        "a safekeeper that is away says nothing about its version",
        (Edit("ReportDelivery._is_answered", "NoAnswer", "Unreachable"),),
        turns_red=DELIVERY + "a_safekeeper_that_is_away_says_nothing_about_its_version",
        why_named=NO_STATUS,
    ),
    Mutant(
        "refusal-by-its-words",
        "connection_errors",
        "a server's refusal is one in any language",
        (
            Edit(
                "connection_errors.connect_failure", "sqlstate.startswith(LASTING_CLASSES)", "False"
            ),
        ),
        turns_red=CONNECTING + "a_refusal_in_any_language_is_one[password]",
        why_named=NO_LANGUAGES,
    ),
    Mutant(
        "cancelled-newcomer-stays-linked",
        "linked_addresses",
        "a newcomer that was given up loses its link",
        (
            Edit(
                "LinkedAddresses._dropped",
                "self.all = tuple(each for each in self.all if each != address)",
            ),
        ),
        turns_red=LINKS + "a_cancelled_newcomer_loses_its_link",
        why_named=NO_ADDRESSES,
    ),
    Mutant(
        "member-that-left-stays-linked",
        "linked_addresses",
        "a member that leaves again loses its link",
        (Edit("LinkedAddresses._decided", "name not in configuration.everyone", "False"),),
        turns_red=LINKS + "a_member_that_leaves_again_loses_its_link",
        why_named=NO_ADDRESSES,
    ),
    Mutant(
        "member-that-left-is-waited-for",
        "linked_addresses",
        "a proposer waits for no link to a member that has left again",
        (Edit("joined_entries", "not number or number in ids", "True"),),
        turns_red=LINKS + "a_member_that_leaves_again_loses_its_link",
        why_named=NO_ADDRESSES,
    ),
    Mutant(
        "given-address-is-dropped",
        "linked_addresses",
        "an address of the command line is no newcomer's, and keeps its link",
        (Edit("LinkedAddresses._added", "address in self.all", "False"),),
        turns_red=LINKS + "an_address_of_the_command_line_is_never_dropped",
        why_named=NO_ADDRESSES,
    ),
    Mutant(
        "certificate-ends-without-a-line",
        "certificate_watch",
        "the log of a daemon warns at its start if the certificate ends soon",
        (Edit("certificate_watch.watch_files", "-math.inf", "time.monotonic()"),),
        turns_red=WATCH + "a_day_has_one_warning",
        why_named=NO_CERTIFICATES,
    ),
    Mutant(
        "renewed-certificate-waits-for-a-connection",
        "certificate_watch",
        "a daemon looks at its TLS file also without a connection",
        (Edit("certificate_watch.watch_files", "file.reload()"),),
        turns_red=WATCH + "each_look_reads_the_file",
        why_named=NO_CERTIFICATES,
    ),
    Mutant(
        "sighup-loads-nothing",
        "certificate_watch",
        "SIGHUP loads the TLS file that was renewed",
        (Edit("certificate_watch.read_again", "file.reload()"),),
        turns_red=WATCH + "sighup_says_what_it_does",
        why_named=NO_CERTIFICATES,
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
        "grants-of-one-version",
        "attach",
        "the printed privileges are those of the server's version",
        (Edit("retention_slots.retention_functions", "version >= FLUSH_SINCE", "False"),),
        turns_red="tests/cli/test_grants.py::test_"
        "a_role_with_the_printed_grants_attaches_and_detaches",
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
        "report-from-before-the-attach",
        "status",
        "a report that is older than an attach is no warning",
        (Edit("status.gather_fresh", "not is_old", "True"),),
        turns_red="tests/cli/test_fresh_reports.py::test_"
        "a_report_from_before_an_attach_is_no_warning[just attached]",
        why_named=NO_STATUS,
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
        "quick-fsyncs-are-not-timed",
        "metrics",
        "the fsyncs of the fast path are in the histogram",
        (Edit("DiskTimes.observe", "self.fsync.observe(fsync_s)"),),
        turns_red=TIMES + "each_write_and_each_sync_of_a_log_is_timed",
        why_named=NO_FIGURES,
    ),
    Mutant(
        "broken-log-has-no-figure",
        "metrics",
        "a log that cannot be opened has a figure, so that an alert can fire",
        (
            Edit(
                "monitoring._unopened",
                "[*(log.cluster for log in catalog.logs()), *broken]",
                "[log.cluster for log in catalog.logs()]",
            ),
        ),
        turns_red="tests/common/test_http_endpoints.py::test_"
        "a_log_that_cannot_be_opened_has_a_figure",
        why_named=NO_FIGURES,
    ),
)
