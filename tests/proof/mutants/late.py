"""M5: newcomers whose logs begin late, who holds what they lack, and how they are filled."""

from __future__ import annotations

from tests.proof.mutants.mutant import ONLY_MEMORY, REAL_DESCRIPTORS, Edit, Mutant

TEST = "tests/consensus/test_pure_late.py::test_"
FILLING = "tests/safekeeper/test_segment_filling.py::test_"
COPYING = "tests/safekeeper/test_back_fill.py::test_"

WRITTEN = "tests/consensus/test_written_ranges.py::test_"
NO_BYTE = "it is for people and changes no byte of WAL"
MINUTES = "the exploration that sees it, members-late, takes minutes"
NO_SETTINGS = "the simulated safekeepers have no slots and keep no WAL by settings"
DOWNWARDS = "the simulated power cuts come seldom while a log is filled"

LATE = (
    Mutant(
        "late-set-is-final-with-too-few-holders",
        "M5",
        "a set is final only if an ack quorum of it holds all WAL before the joint term",
        (Edit("filling", "current.begins_late and not is_held(current, at_work)", "False"),),
        turns_red=TEST + "the_members_stay_joint_until_the_newcomer_is_filled",
        why_named=MINUTES,
    ),
    Mutant(
        "lacking-member-counts-as-holder",
        "M5",
        "a member is no holder of WAL below the beginning of its log",
        (
            Edit(
                "is_held",
                "s.oldest_lsn <= kept_lsn and s.flush_lsn >= start_lsn",
                "s.flush_lsn >= start_lsn",
            ),
        ),
        turns_red=TEST + "a_set_is_final_only_if_an_ack_quorum_of_it_holds_each_byte",
        why_named=MINUTES,
    ),
    Mutant(
        "laggard-counts-as-holder",
        "M5",
        "a member is no holder of WAL before the joint term that it has not got",
        (
            Edit(
                "is_held",
                "s.oldest_lsn <= kept_lsn and s.flush_lsn >= start_lsn",
                "s.oldest_lsn <= kept_lsn",
            ),
        ),
        turns_red=TEST + "a_set_is_final_only_if_an_ack_quorum_of_it_holds_each_byte",
        why_named=MINUTES,
    ),
    Mutant(
        "late-log-begins-before-a-commit",
        "M3",
        "a log begins late only where a leader of the learning members has committed",
        (Edit("_late_base", "s.has_committed and s.commit_lsn >= _last_start(s)", "True"),),
        turns_red=TEST + "no_log_begins_late_before_a_term_is_committed",
        why_named=MINUTES,
    ),
    Mutant(
        "restart-lsn-passes-a-late-log",
        "M5",
        "restart_lsn waits until a log that begins late is filled",
        (
            Edit(
                "Leader.advance_commit",
                "min(self.restart_lsn_max, self.held_lsn)",
                "self.restart_lsn_max",
            ),
        ),
        turns_red=TEST + "restart_lsn_waits_until_a_late_log_is_filled",
        why_named=MINUTES,
    ),
    Mutant(
        "fast-restart-lsn-passes-a-late-log",
        "M5",
        "the fast path lets restart_lsn wait as the slow path does",
        (
            Edit(
                "expected_stream.expected_stream",
                "min(leader.restart_lsn_max, leader.held_lsn)",
                "leader.restart_lsn_max",
            ),
        ),
        turns_red=TEST + "the_fast_path_lets_restart_lsn_wait_as_well",
        why_named=MINUTES,
    ),
    Mutant(
        "archived-logs-are-waited-for",
        "M5",
        "without late logs the beginning of a log holds back nothing",
        (Edit("lacking", "not configuration.begins_late", "False"),),
        turns_red=TEST + "logs_of_members_without_late_ones_hold_back_nothing",
        why_named=ONLY_MEMORY,
    ),
    Mutant(
        "any-log-may-begin-late",
        "M5",
        "a log begins late only under a configuration that earlier versions refuse",
        (
            Edit(
                "joined",
                "(ask.restart_lsn or ask.donors) and not configuration.begins_late",
                "False",
            ),
        ),
        turns_red=TEST + "a_newcomer_refuses_a_late_beginning_that_is_none",
        why_named="the simulated programs are of one version",
    ),
    Mutant(
        "donor-without-an-address",
        "M5",
        "a newcomer takes no donor that it could never connect to",
        (Edit("_is_donor", "is_address(text)", "True"),),
        turns_red=TEST + "a_newcomer_refuses_a_late_beginning_that_is_none",
        why_named="the simulated programs name real members",
    ),
    Mutant(
        "address-of-no-host",
        "R25",
        "a peer's text is an address only if a resolver and a socket take it",
        (Edit("parse_address", "is_port and host and is_host(host)", "is_port and host"),),
        turns_red="tests/cli/test_command_line.py::test_a_text_that_is_no_address_of_a_safekeeper_"
        "is_refused",
        why_named="the simulated programs have no sockets",
    ),
    Mutant(
        "late-logs-are-forgotten",
        "M5",
        "no later configuration forgets that logs may begin late",
        (Edit("may_follow", "current.begins_late or later.begins_late", "later.begins_late"),),
        turns_red=TEST + "no_later_configuration_forgets_that_logs_may_begin_late",
        why_named="the simulated programs are of one version",
    ),
    Mutant(
        "filled-segment-leaves-a-gap",
        "M5",
        "a segment is put in front of a log only if it ends where the log begins",
        (Edit("WalStore.begin_with", "self._first_lsn == lsn + self.segment_bytes", "True"),),
        turns_red=FILLING + "a_segment_is_not_put_where_it_would_leave_a_gap",
        why_named=REAL_DESCRIPTORS,
    ),
    Mutant(
        "first-files-come-first",
        "M5",
        "of a filled segment with several files, that of its first byte comes last",
        (
            Edit(
                "fill_segment",
                "reversed(timelines.owners(begin_lsn, begin_lsn + size))",
                "timelines.owners(begin_lsn, begin_lsn + size)",
            ),
        ),
        turns_red=FILLING + "a_power_cut_while_a_log_is_filled_leaves_no_gap[0]",
        why_named=DOWNWARDS,
    ),
    Mutant(
        "filled-before-its-head-is-committed",
        "M5",
        "a log is filled only when the record that goes on at its beginning is durably committed",
        (Edit("may_fill", "_head_is_committed(store, commit_lsn)", "True"),),
        turns_red=FILLING + "a_log_is_filled_once_its_first_record_is_committed",
        why_named=DOWNWARDS,
    ),
    Mutant(
        "filling-keeps-no-pace",
        "M5",
        "older WAL is copied at the rate of --fill-rate at most",
        (Edit("BackFill._fill_one", "size / self._bytes_s", "0"),),
        turns_red="tests/safekeeper/test_fill_rate.py::"
        "test_a_copied_segment_is_followed_by_a_pause_of_its_time",
        why_named="the simulated newcomers fill their logs at once",
    ),
    Mutant(
        "fragment-names-no-generation",
        "M5",
        "a fragment of a log with late newcomers names its generation",
        (
            Edit(
                "Configuration.named_generation", "self.generation if self.begins_late else 0", "0"
            ),
        ),
        turns_red=WRITTEN + "a_fragment_names_its_generation_once_logs_begin_late",
        why_named=NO_BYTE,
    ),
    Mutant(
        "generation-ends-the-way-back",
        "M5",
        "a fragment names no generation while earlier versions may read the log",
        (
            Edit(
                "Configuration.named_generation",
                "self.generation if self.begins_late else 0",
                "self.generation",
            ),
        ),
        turns_red=WRITTEN + "a_fragment_names_its_generation_once_logs_begin_late",
        why_named=NO_BYTE,
    ),
    Mutant(
        "older-wal-stays-where-it-is",
        "M6",
        "a newcomer copies WAL that slots and settings keep on the other members",
        (
            Edit(
                "BackFill.lacks_bytes",
                "max(needed, lacks_bytes(self._driver, self._kept_lsn()))",
                "needed",
            ),
        ),
        turns_red=COPYING + "what_the_others_keep_is_copied",
        why_named=NO_SETTINGS,
    ),
    Mutant(
        "removed-wal-is-asked-for-again",
        "M6",
        "WAL that no member holds is not lacking",
        (Edit("BackFill.run", "self._removed_lsn = self._driver.store.first_lsn", "pass"),),
        turns_red=COPYING + "wal_that_no_member_holds_is_asked_for_once",
        why_named=NO_SETTINGS,
    ),
    Mutant(
        "copied-wal-is-removed-again",
        "M6",
        "older WAL takes at most half of --wal-size-max",
        (Edit("copied_from", "flush_lsn if size_max is None else size_max // 2", "flush_lsn"),),
        turns_red=COPYING + "slots_and_settings_say_what_is_copied",
        why_named=NO_SETTINGS,
    ),
    Mutant(
        "silent-source-ends-the-filling",
        "M5",
        "a member that does not answer while a log is filled is asked again",
        (Edit("BackFill.run", "isinstance(error, StorageError)", "True"),),
        turns_red=COPYING + "a_source_that_fails_is_asked_again[error0]",
        why_named="the simulated newcomers fill their logs at once",
    ),
)
