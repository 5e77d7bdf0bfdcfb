"""Mutants of a server that another program starts, and `walkeeper gate --exec` closes."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

NO_COMMANDS = "the simulator runs daemons and no commands of an operator"
START = "tests/cli/test_gated_start.py::test_"
RULES_TEST = "tests/cli/test_gate_wait.py::test_a_server_tells_that_its_rules_are_closed"
FAULTS = "tests/cli/test_gate_after_faults.py::test_"

GATING = (
    Mutant(
        "primary-starts-open",
        "gate",
        "a server without standby.signal starts closed",
        (
            Edit(
                "gated_start.may_show_more_than_the_log",
                '(data_directory / "standby.signal").exists()',
                "True",
            ),
        ),
        turns_red=START
        + "a_standby_is_closed_if_it_was_a_primary_and_a_primary_always[IN_ARCHIVE_RECOVERY]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "old-primary-starts-open-as-a-standby",
        "gate",
        "a standby that was a primary before starts closed",
        (
            Edit(
                "gated_start.may_show_more_than_the_log",
                "parse_control_data(content).state not in OF_A_STANDBY",
                "False",
            ),
        ),
        turns_red=START
        + "a_standby_is_closed_if_it_was_a_primary_and_a_primary_always[IN_PRODUCTION]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "every-standby-starts-closed",
        "gate",
        "a standby that was one before starts open, without a quorum",
        (
            Edit(
                "gated_start.may_show_more_than_the_log",
                "parse_control_data(content).state not in OF_A_STANDBY",
                "True",
            ),
        ),
        turns_red=START
        + "a_standby_is_closed_if_it_was_a_primary_and_a_primary_always[IN_ARCHIVE_RECOVERY]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "restart-opens-the-door",
        "gate",
        "a start opens no closed door",
        (Edit("Door.prepare", "self.ticket() is not None", "False"),),
        turns_red=START + "a_start_that_need_not_be_closed_leaves_a_closed_door_closed",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "any-ticket-opens-the-door",
        "gate",
        "the wait of an earlier start opens no later one",
        (
            Edit(
                "Door.open",
                "found is None or (ticket is not None and found != ticket)",
                "found is None",
            ),
        ),
        turns_red=START + "a_closing_is_opened_by_its_own_ticket",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "second-start-closes-a-server-that-runs",
        "gate",
        "a start beside a server that runs is refused, and leaves its door alone",
        (Edit("gated_start.prepare", "(pid := running_pid(data_directory)) is not None", "False"),),
        turns_red=START + "the_door_of_a_server_that_runs_is_left_alone",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "standby-opens-ahead-of-the-log",
        "gate",
        "a closed standby opens when the log has all that it has replayed",
        (
            Edit(
                "gated_server._log_has_all",
                "not isinstance(verdict, SameBranch) or verdict.ahead_bytes",
                "not isinstance(verdict, SameBranch)",
            ),
        ),
        turns_red=START + "a_standby_opens_when_the_log_has_all_that_it_has_replayed",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "standby-opens-as-a-quorums",
        "gate",
        "a server in recovery is compared with the log before it is opened",
        (Edit("gated_server.open_when_durable", "lsn is None", "False"),),
        turns_red=START + "a_standby_opens_when_the_log_has_all_that_it_has_replayed",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "crash-of-a-backend-recovers-in-place",
        "gate",
        "a server behind a crash of a backend comes back by a start, which is closed",
        (Edit("Door.arguments", '"restart_after_crash=off"', '"restart_after_crash=on"'),),
        turns_red=START + "a_closed_door_shows_the_rules_of_the_roles_alone_whatever_rewrites_them",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "half-written-file-stops-each-start",
        "gate",
        "a start removes what a crash left of a write",
        (Edit("Door.close", "self._directory.glob(f'*{UNFINISHED}')", "()"),),
        turns_red=FAULTS + "a_start_goes_on_behind_a_crash_while_it_wrote_a_file",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "rules-of-another-encoding-stop-each-start",
        "gate",
        "the rules are read in any encoding",
        (
            Edit(
                "Door.close",
                "Path(own.hba_file).read_text(**ANY_ENCODING)",
                "Path(own.hba_file).read_text()",
            ),
        ),
        turns_red=FAULTS + "rules_in_any_encoding_are_narrowed",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "closed-rules-are-for-all-to-read",
        "gate",
        "only the server's user reads the closed rules",
        (Edit("Door._write", "0o600", "0o666"),),
        turns_red=FAULTS + "the_closed_rules_are_for_the_servers_user_alone",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "door-leads-to-itself",
        "gate",
        "a command with the files of the door is refused",
        (
            Edit(
                "Door._refuse_others",
                "Path(path).parent.resolve() == self._directory.resolve()",
                "False",
            ),
        ),
        turns_red=FAULTS + "a_command_with_the_files_of_the_door_is_refused",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "primary-in-an-exclusive-backup-starts-open",
        "gate",
        "a backup_label of pg_start_backup may be a primary's own",
        (
            Edit(
                "gated_start.may_show_more_than_the_log",
                "EXCLUSIVE_BACKUP in (data_directory / 'backup_label').read_bytes()",
                "(data_directory / 'backup_label').read_bytes() is None",
            ),
        ),
        turns_red=FAULTS + "a_primary_that_crashed_in_an_exclusive_backup_is_closed",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "failed-reload-leaves-the-server-closed",
        "gate",
        "the server loads the rules of an opened door",
        (
            Edit(
                "gated_server.open_when_durable",
                "_load_rules(guard, news)",
                "reload_rules(guard.dsn)",
            ),
        ),
        turns_red=FAULTS + "an_open_door_is_loaded_though_the_first_reload_fails",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "commit-elsewhere-opens-the-door",
        "gate",
        "the commit that opens is one of this directory's server",
        (
            Edit(
                "running_server.refuse_another",
                "ours.splitlines()[:IDENTITY_LINES] != theirs.splitlines()[:IDENTITY_LINES]",
                "False",
            ),
        ),
        turns_red=FAULTS + "a_commit_on_another_server_opens_no_door",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "cancelled-wait-opens-the-door",
        "gate",
        "a wait that somebody cancels opens nothing",
        (
            Edit(
                "closed_start.wait_durable",
                "sql.execute(WAITING)",
                "sql.execute('SET synchronous_commit = on')",
            ),
        ),
        turns_red=FAULTS + "a_cancelled_wait_is_noticed_whatever_messages_the_role_gets",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "servers-share-a-door",
        "gate",
        "each server has a door of its own",
        (
            Edit(
                "Door._refuse_others",
                "owner is not None and owner != self._data_directory and owner.is_dir()",
                "False",
            ),
        ),
        turns_red=FAULTS + "a_door_of_another_data_directory_is_refused",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "rejected-group-is-left-out",
        "gate",
        "a rule that rejects a group stays",
        (Edit("hba_rules._rule_for", "_rejects(word, line[users.end(1):])", "False"),),
        turns_red=FAULTS + "a_group_that_is_rejected_stays_so[10.0.0.0/8-+remote]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "refusal-is-said-once-for-ever",
        "gate",
        "the wait says its reason again and again",
        (Edit("_News.say", "self._last_text.clear()"),),
        turns_red=START + "a_refusal_that_goes_on_is_said_again_when_it_is_due",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "starting-server-is-news",
        "gate",
        "a server that does not answer yet is no news",
        (Edit("_News.say", "isinstance(error, NotConnected)", "False"),),
        turns_red=START + "a_server_that_does_not_answer_yet_is_said_only_when_it_is_due",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "wrong-option-ends-the-wait",
        "gate",
        "the wait goes on after each error, since a promotion may open the server",
        (
            Edit(
                "gated_server.open_when_durable",
                "news.say('closed', error)",
                "news.say('closed', error) if isinstance(error, Refused) else [][0]",
            ),
        ),
        turns_red=FAULTS + "a_log_that_is_not_there_yet_does_not_end_the_wait",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "closed-server-is-overlooked",
        "status",
        "`status` and `check` name a server that `gate` keeps closed",
        (Edit("log_verdict._gated", "is_gated(cluster)", "False"),),
        turns_red="tests/cli/test_asked_primary.py::test_a_closed_primary_is_named[quorum]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "closed-server-without-a-quorum-is-overlooked",
        "status",
        "`status` names a closed server also while no quorum serves the log",
        (
            Edit(
                "log_verdict.judge",
                "(blocking, *_gated(cluster), *members)",
                "(blocking, *members)",
            ),
        ),
        turns_red="tests/cli/test_asked_primary.py::test_a_closed_primary_is_named[no quorum]",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "door-is-not-asked-for",
        "status",
        "a server tells whether its door is closed",
        (
            Edit(
                "primarys_answer._gate",
                "sql.fetchval(GATE, STATE_PARAMETER, SESSION)",
                "sql.fetchval(GATE, 'none.such', SESSION)",
            ),
        ),
        turns_red=START + "a_server_tells_whether_its_door_is_closed",
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "closed-rules-are-not-looked-at",
        "status",
        "a server whose rules are closed is named also if no `gate` runs any more",
        (Edit("primarys_answer._gate", "await sql.fetchval(RULES, MARK.encode())", "False"),),
        turns_red=RULES_TEST,
        why_named=NO_COMMANDS,
    ),
    Mutant(
        "waiting-gate-has-no-name",
        "status",
        "each role sees a `gate` that waits for the quorum",
        (
            Edit(
                "primarys_answer._gate",
                "sql.fetchval(GATE, STATE_PARAMETER, SESSION)",
                "sql.fetchval(GATE, STATE_PARAMETER, '')",
            ),
        ),
        turns_red=RULES_TEST,
        why_named=NO_COMMANDS,
    ),
)
