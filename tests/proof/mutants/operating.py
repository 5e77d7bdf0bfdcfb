"""Mutants of what an operator relies on: links, certificates, repair, check and metrics."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

LINKS = "tests/proposer/test_pure_linked_addresses.py::test_"
WATCH = "tests/common/test_certificate_watch.py::test_"
TIMES = "tests/safekeeper/test_disk_times.py::test_"
NO_ADDRESSES = "the simulated network has no addresses, only numbers of safekeepers"
NO_CERTIFICATES = "the simulated network has no TLS"
NO_FIGURES = "no oracle reads a figure of /metrics"
CONNECTING = "tests/proposer/test_connection_errors.py::test_"
AWAY = "tests/proposer/test_away_members.py::test_"
JOURNAL = "tests/common/test_journal_stream.py::test_"
DELIVERY = "tests/proposer/test_report_delivery.py::test_"
LACKING = "tests/safekeeper/test_fill_rate.py::test_a_log_that_lacks_wal_says_why_nothing_is_copied"
WAITING = "tests/proposer/test_waiting_commits.py::test_"
LAST_TEXT = "tests/common/test_last_text.py::test_"
SILENT = "tests/cli/test_silent_members.py::test_"
ASKED = "tests/cli/test_asked_primary.py::test_"
NO_STATUS = "no oracle reads what `status` prints"
NO_LOG = "no oracle reads the log"
NO_LANGUAGES = "the simulated primary answers in no language"

OPERATING = (
    Mutant(
        "same-failure-is-shown-again",
        "last_text",
        "a retry that fails as before logs nothing",
        (Edit("LastText.changes_to", "self._text != before", "True"),),
        turns_red=LAST_TEXT + "the_same_text_is_shown_once",
        why_named=NO_LOG,
    ),
    Mutant(
        "failure-after-a-success-is-not-shown",
        "last_text",
        "a failure that comes again after a success is logged again",
        (Edit("LastText.clear", "self._text = ''"),),
        turns_red=LAST_TEXT + "a_failure_after_a_success_is_shown_again",
        why_named=NO_LOG,
    ),
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
        (Edit("primarys_answer.asked_primary", 'found["streaming"] is None', "False"),),
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
        "report-from-before-the-attach",
        "status",
        "a report that is older than an attach is no warning",
        (Edit("status.gather_fresh", "not may_be_old(document)", "True"),),
        turns_red="tests/cli/test_fresh_reports.py::test_"
        "a_report_from_before_an_attach_is_no_warning[just attached]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "a-catching-up-walsender-is-not-waited-for",
        "sync_state",
        "a walsender's first moments do not tell whether commits wait for it",
        (Edit("sync_state.commits_of", "_is_settling(row)", "False"),),
        turns_red="tests/cli/test_asked_primary.py"
        "::test_a_walsender_that_has_just_begun_says_nothing_of_commits"
        "[potential-catchup-False-None]",
        why_named=NO_STATUS,
    ),
    Mutant(
        "the-list-of-logs-is-from-before-the-attach",
        "logs",
        "a report that is older than an attach is no warning in the list, either",
        (
            Edit("listed", "any(map(may_be_old, documents))", "False"),
            Edit("listed", "may_be_old(document)", "False"),
        ),
        turns_red="tests/cli/test_fresh_reports.py::test_the_list_of_logs_asks_again"
        "[just attached]",
        why_named=NO_STATUS,
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
                "safekeeper_monitoring._unopened",
                "[*(log.cluster for log in catalog.logs()), *broken]",
                "[log.cluster for log in catalog.logs()]",
            ),
        ),
        turns_red="tests/common/test_http_endpoints.py::test_"
        "a_log_that_cannot_be_opened_has_a_figure",
        why_named=NO_FIGURES,
    ),
)
