"""Members change: two sets of quorums, generations, the register that decides, and the newcomer.

The killers are seeds of worlds with a replacement and of rival commands, and tests of what two
guards or more keep from happening there.
"""

from __future__ import annotations

from tests.proof.mutants.mutant import REPLACE, RESIZE, RIVALS, SEARCHED, Edit, Mutant

REPLACE_TEST = "tests/consensus/test_pure_replacing.py::test_"
CANCEL_TEST = "tests/consensus/test_pure_cancelling.py::test_"
RESIZE_TEST = "tests/consensus/test_pure_resizing.py::test_"
GENERATIONS = "tests/consensus/test_pure_generations.py::test_"

SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"
FORGOT = f"{SCENARIO}[newcomer_knows_of_commits_that_the_old_forgot]"


REPLACEMENTS = (
    Mutant(
        "old-members-commit-alone",
        "members change",
        "with joint members a commit needs an ack quorum of the new ones, too",
        (Edit("Leader.__init__", "configuration.sets", "configuration.sets[:1]"),),
        searched_by=(REPLACE,),
    ),
    Mutant(
        "new-members-commit-alone",
        "members change",
        "with joint members a commit needs an ack quorum of the old ones, too",
        (Edit("Leader.__init__", "configuration.sets", "configuration.sets[-1:]"),),
        turns_red=GENERATIONS + "neither_commits_nor_restart_lsn_move_with_one_of_the_two_sets",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "old-members-elect-alone",
        "members change",
        "with joint members an election needs a vote quorum of the new ones, too",
        (
            Edit("Configuration.elects", "self.sets", "self.sets[:1]"),
            Edit("Configuration.commits", "self.sets", "self.sets[:1]"),
        ),
        turns_red=REPLACE_TEST + "with_joint_members_both_sets_decide",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "new-members-elect-alone",
        "members change",
        "with joint members an election needs a vote quorum of the old ones, too",
        (
            Edit("Configuration.elects", "self.sets", "self.sets[-1:]"),
            Edit("Configuration.commits", "self.sets", "self.sets[-1:]"),
        ),
        searched_by=(REPLACE,),
    ),
    Mutant(
        "any-generation-is-served",
        "members change",
        "a safekeeper serves proposers of its own generation only",
        (
            Edit("refusal_of", "generation != configuration.generation", "False"),
            Edit(
                "is_granted",
                "(vote.ballot, vote.generation) == (ballot, configuration.generation)",
                "vote.ballot == ballot",
            ),
        ),
        turns_red=GENERATIONS + "who_has_left_a_generation_does_nothing_that_is_asked_in_it",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "generation-is-not-left",
        "members change",
        "a commit of an older generation's leader is no proof for the newer one",
        (
            Edit(
                "Acceptor._leave_generation",
                "self.elected, self.elected_commit_lsn = False, ZERO_LSN",
            ),
        ),
        turns_red=GENERATIONS + "what_an_older_leader_committed_is_no_proof_for_newer_members",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "final-before-the-joint-commit",
        "members change",
        "the final members are proposed when a leader with the joint ones has committed",
        (
            Edit(
                "newcomers.filling",
                "filled and known_lsn > ZERO_LSN",
                "True",
            ),
        ),
        searched_by=(REPLACE,),
    ),
    Mutant(
        "what-was-accepted-is-passed-over",
        "members change",
        "a later round takes over what an earlier one may have decided",
        (Edit("deciding.decide", "last.accepted or wanted", "wanted"),),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "older-rounds-are-accepted",
        "members change",
        "a member that promised a greater round accepts nothing of a smaller one",
        (Edit("_accepted", "ask.round < durable.change_round", "False"),),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "decided-by-one",
        "members change",
        "only what a quorum has accepted is installed",
        (Edit("deciding.decide", "old.commits([state.member for state in accepted])", "True"),),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "older-members-are-installed",
        "members change",
        "a safekeeper's generation never decreases",
        (
            Edit(
                "_installed",
                "if configuration.generation <= ours.generation:\n"
                "    return durable if configuration == ours else None\n",
            ),
        ),
        turns_red=REPLACE_TEST + "a_generation_never_decreases",
        searched_by=(RIVALS,),
        why_named=SEARCHED,
    ),
    Mutant(
        "newcomer-is-not-waited-for",
        "members change",
        "restart_lsn stands still until the newcomer has been filled",
        (
            Edit(
                "Leader.advance_commit",
                "min(restart_lsn, *flushed)",
                "min(restart_lsn, *flushed) if members is counted[0][1] else restart_lsn",
            ),
        ),
        turns_red=GENERATIONS + "neither_commits_nor_restart_lsn_move_with_one_of_the_two_sets",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "newcomer-claims-who-writes-next",
        "members change",
        "a newcomer's history ends where its log begins",
        (
            Edit("newcomers.begin_log", "_below(donor.history, base_lsn)", "donor.history"),
            Edit("joined", "any(e.start_lsn >= base_lsn for e in history[1:])", "False"),
        ),
        searched_by=(REPLACE,),
    ),
    Mutant(
        "newcomer-has-nothing-to-compare",
        "members change",
        "a newcomer's log begins a segment before the last that all have",
        (
            Edit(
                "_oldest_kept",
                "min(latest_lsn, max(Lsn(record - segment_bytes), creation_lsn, oldest_lsn))",
                "latest_lsn",
            ),
        ),
        turns_red=REPLACE_TEST + "the_newcomers_log_begins_a_segment_before_the_last_that_all_have",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "newcomer-begins-below-what-anybody-has",
        "members change",
        "a newcomer's log begins with WAL that all old members have",
        (
            Edit(
                "_oldest_kept",
                "max(Lsn(record - segment_bytes), creation_lsn, oldest_lsn)",
                "max(Lsn(record - segment_bytes), creation_lsn)",
            ),
        ),
        turns_red=REPLACE_TEST + "the_newcomers_log_begins_a_segment_before_the_last_that_all_have",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "newcomer-begins-inside-a-record",
        "M3",
        "a newcomer's log begins before a record that is not finished",
        (
            Edit(
                "_oldest_kept",
                "known_lsn = whole_lsn or restart_lsn",
                "known_lsn = whole_lsn = restart_lsn",
            ),
        ),
        turns_red=REPLACE_TEST + "the_newcomers_log_begins_before_a_record_that_is_being_written",
        why_named="no simulated record is as long as a segment",
    ),
    Mutant(
        "where-records-end-is-not-told",
        "M3",
        "a member reports the end of the last whole record that all have",
        (Edit("Acceptor._answer_question", "replace(state, whole_lsn=record_lsn)", "state"),),
        turns_red="tests/consensus/test_scenarios.py::"
        "test_scenario[newcomer_begins_before_an_unfinished_record]",
        why_named="no simulated record is as long as a segment",
    ),
    Mutant(
        "nobody-is-asked-for-older-wal",
        "members change",
        "WAL that the donor does not keep is compared at another member",
        (Edit("with_older", "if not able:\n    return scope\n", "return scope"),),
        turns_red=f"{SCENARIO}[newcomer_alone_shows_no_primary]",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "newcomer-is-all-that-is-compared",
        "members change",
        "a newcomer's knowledge of commits keeps no other member from an election",
        (
            Edit(
                "scope_of_greetings",
                "scope.is_empty and best.oldest_lsn < scope.begin_lsn",
                "False",
            ),
        ),
        turns_red=FORGOT,
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "forgotten-commits-are-not-compared",
        "check of the primary",
        "before an election a primary is compared as far as the old members know",
        (
            Edit(
                "scope_of_greetings", "_committed(best, holding) if holding else nothing", "nothing"
            ),
        ),
        turns_red=FORGOT,
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "decided-by-a-vote-quorum",
        "members change",
        "an ack quorum decides what follows: a vote quorum may be smaller, and two of them apart",
        (
            Edit(
                "deciding.decide",
                "old.commits([state.member for state in accepted])",
                "old.elects([state.member for state in accepted])",
            ),
        ),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "register-is-not-persisted",
        "members change",
        "a member's promise or acceptance for the next members is durable before its answer",
        (
            Edit(
                "Acceptor.on_members",
                "[Persist(durable), *(self._leave_generation() if leaves else [])]",
                "self._leave_generation() if leaves else []",
            ),
        ),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "register-is-not-reset",
        "members change",
        "promises and acceptances of one generation do not count in the next",
        (
            Edit("_installed", "change_round=NO_BALLOT"),
            Edit("_installed", "accepted_round=NO_BALLOT"),
            Edit("_installed", "accepted=None"),
        ),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "known-commits-are-proof",
        "members change",
        "commits that a member knew of before this leader are no proof that this leader committed",
        (
            Edit(
                "members_state",
                "acceptor.elected_commit_lsn >= acceptor.term_start_lsn",
                "acceptor.commit_lsn >= acceptor.term_start_lsn",
            ),
        ),
        turns_red=GENERATIONS + "what_an_older_leader_committed_is_no_proof_for_newer_members",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "cancel-is-not-decided",
        "members change",
        "the register of the joint members holds the cancel or the new members, never both",
        (
            Edit(
                "cancel_change",
                "yield from decide(cluster, current, wanted, places, states, draw)",
                "wanted",
            ),
        ),
        searched_by=(RIVALS,),
    ),
    Mutant(
        "cancel-is-refused",
        "members change",
        "a replacement can be taken back as long as the newcomer is no member",
        (
            Edit(
                "is_successor",
                "following == cancelled(current)",
                "False",
            ),
        ),
        turns_red=CANCEL_TEST + "a_replacement_whose_newcomer_is_lost_is_taken_back",
        searched_by=(RIVALS,),
        why_named="a cancel that gets nowhere is no harm: the replacements end",
    ),
    Mutant(
        "cancelled-is-begun-again",
        "members change",
        "a command that runs does not begin again what was taken back meanwhile",
        (
            Edit(
                "_is_taken_back",
                "any(member in current.members for member in begun.leavers)",
                "False",
            ),
        ),
        turns_red=CANCEL_TEST + "a_command_that_runs_does_not_begin_again_what_was_taken_back",
        why_named="no oracle knows what an operator wants",
    ),
    Mutant(
        "refused-rounds-spin",
        "R25",
        "a round that is refused is followed by a pause, and not by a durable promise at once",
        (
            Edit(
                "deciding.decide",
                "yield Batch(text=_undecided(old, current, round_, answers), current=current)",
            ),
        ),
        turns_red=CANCEL_TEST + "a_round_that_is_refused_is_followed_by_a_pause_and_the_reason",
        why_named="a loop without a pause costs time and no byte of a log, so no oracle sees it",
    ),
    Mutant(
        "impossible-members-are-proposed",
        "R25",
        "a member is not proposed as the newcomer that replaces it",
        (Edit("_is_under_way", "name in present", "False"),),
        turns_red=CANCEL_TEST + "an_old_member_is_no_newcomer_of_the_change_that_replaces_it",
        why_named="the register refuses such members, so no oracle sees it",
    ),
    Mutant(
        "any-news-is-progress",
        "R25",
        "two waits by turns are no progress, so that --timeout holds",
        (Edit("ChangeProgress.is_in", "return is_new", "return True"),),
        turns_red=CANCEL_TEST + "two_waits_by_turns_are_no_progress",
        why_named="the simulated operators have no time limit",
    ),
    Mutant(
        "both-sets-count-alike",
        "M1",
        "with joint members each set commits by its own ack quorum",
        (
            Edit(
                "Leader.advance_commit",
                "each.acknowledged(flushed)",
                "sorted(flushed)[len(flushed) - self.configuration.ack_quorum]",
            ),
        ),
        turns_red=f"{SCENARIO}[ack_quorum_changes_with_two_sets]",
        searched_by=(RESIZE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "both-sets-elect-alike",
        "M1",
        "with joint members each set elects by its own vote quorum",
        (
            Edit(
                "Configuration.elects",
                "each.elects(names)",
                "sum(m in names for m in each.members) >= self.vote_quorum",
            ),
        ),
        turns_red=f"{SCENARIO}[each_set_counts_by_its_own_quorum]",
        searched_by=(RESIZE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "ack-quorum-before-the-joint-commit",
        "M4",
        "without a newcomer, too, a leader commits with both sets before the new one is final",
        (Edit("newcomers.filling", "any(state.has_committed for state in at_work)", "True"),),
        turns_red=RESIZE_TEST + "a_set_is_final_when_a_leader_has_committed_with_both",
        searched_by=(RESIZE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "one-newcomer-is-filled-for-all",
        "M4",
        "each of several newcomers has what is committed before the new set is final",
        (
            Edit(
                "newcomers.filling",
                "all(s.has_committed and s.commit_lsn >= known_lsn for s in newcomers)",
                "any(s.has_committed and s.commit_lsn >= known_lsn for s in newcomers)",
            ),
        ),
        turns_red=RESIZE_TEST + "newcomers_that_one_leader_has_not_filled_are_waited_for",
        why_named=SEARCHED,
    ),
    Mutant(
        "any-target-becomes-final",
        "members change",
        "the successor of a joint configuration is its own target or the old set",
        (
            Edit(
                "is_successor",
                "following == cancelled(current)",
                "following.generation == current.generation + 1",
            ),
        ),
        turns_red="tests/consensus/test_pure_member_sets.py::test_"
        "what_may_be_installed_is_what_changes_can_lead_to",
        why_named="no command proposes such members",
    ),
    Mutant(
        "a-second-change-is-mixed-in",
        "members change",
        "one change of members at a time: another one refuses, and does not take its place",
        (
            Edit(
                "_is_under_way",
                "not is_same and not (goal.instead and _leave(goal, current) == leaving)",
                "False",
            ),
        ),
        turns_red=RESIZE_TEST + "one_change_at_a_time",
        why_named="each such change is safe, so no oracle sees it",
    ),
    Mutant(
        "new-members-without-a-majority",
        "R19",
        "no ack quorum is guessed where the present one is no majority",
        (
            Edit(
                "_quorum",
                "present.ack_quorum == majority(len(present.members))",
                "True",
            ),
        ),
        turns_red=RESIZE_TEST + "what_cannot_be_done_is_refused_and_changes_nothing",
        why_named="every ack quorum is safe, so no oracle sees it",
    ),
    Mutant(
        "an-election-waits-after-a-change",
        "members change",
        "the next election begins at once, since no rival ended the term",
        (
            Edit(
                "Proposer.gives_way_to_new_members",
                "newest.generation > leader.configuration.generation",
                "False",
            ),
        ),
        turns_red=GENERATIONS + "a_leader_of_older_members_starts_over",
        why_named="it is a matter of time",
    ),
)
