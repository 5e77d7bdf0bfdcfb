"""R8 to R12 on the fast path of a proposer: WAL to all members, acks to a commit."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    BUSY,
    FAST_CHANNEL,
    SEARCHED,
    SIM,
    STREAM_PATH,
    Edit,
    FastEdit,
    Mutant,
)

STREAM = "tests/proposer/test_fast_stream.py"
BYTES = f"{STREAM}::test_what_is_known_by_its_bytes_is_what_they_say"
QUORUM = f"{STREAM}::test_the_quorum_is_the_one_of_the_rules"
TLS = "tests/proposer/test_fast_tls.py::test_"
NO_TLS = "the simulated network has no TLS"
NO_TIMES = "no oracle asks how soon commit_lsn is announced"
ANNOUNCED = "tests/proposer/test_fast_announcements.py::test_"
TEMPLATE = "walkeeper_proposer.consensus.expected_stream"

FAST_STREAM = (
    Mutant(
        "fast-ack-of-another-term",
        "R10",
        "the fast path of an ack is for acks of this term only",
        (
            FastEdit(
                "if memcmp(frame + at, self.acks[i], ACK_TERM_BYTES) != 0:",
                "if False:",
                STREAM_PATH,
            ),
        ),
        turns_red=BYTES,
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-ack-beyond-what-was-sent",
        "R10",
        "an ack of more than was sent does not count on the fast path either",
        (FastEdit("if flush_lsn > self.end_lsn:", "if False:", STREAM_PATH),),
        turns_red=f"{STREAM}::test_an_ack_of_more_than_was_sent_does_not_count",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-acks-outlive-an-event",
        "R10",
        "the template of the acks is void with the next event, a lost link for one",
        (Edit("walkeeper_proposer.proposer_driver.Driver._step", "self._end_fast()", "pass"),),
        turns_red=f"{STREAM}::test_the_core_learns_of_it_before_the_next_event",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-append-over-a-fork",
        "R8",
        "no append of the fast path crosses the fork of two timelines",
        (
            Edit(
                f"{TEMPLATE}._is_steady",
                "end_lsn >= leader.feeder.timelines.last_start_lsn",
                "True",
            ),
        ),
        turns_red=f"{STREAM}::test_no_append_crosses_a_fork_that_lies_ahead",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-commit-of-too-few",
        "R10",
        "the fast path commits what an ack quorum has, as the rule says",
        (
            FastEdit(
                "ascending[self.set_sizes[k] - self.ack_quorums[k]]",
                "ascending[self.set_sizes[k] - 1]",
                STREAM_PATH,
            ),
        ),
        turns_red=f"{QUORUM}[0]",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-sets-count-alike",
        "M1",
        "with joint members each set commits by its own ack quorum on the fast path too",
        (
            FastEdit(
                "ascending[self.set_sizes[k] - self.ack_quorums[k]]",
                "ascending[self.set_sizes[k] - self.ack_quorums[0]]",
                STREAM_PATH,
            ),
        ),
        turns_red=f"{STREAM}::test_each_set_has_its_own_quorum",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-commit-below-the-terms-start",
        "R10",
        "an ack below the term's start counts with 0 on the fast path too",
        (FastEdit("if lsn < self.start_lsn:", "if False:", STREAM_PATH),),
        turns_red=f"{QUORUM}[9]",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-report-of-what-was-received",
        "R12",
        "the fast path reports commit_lsn, not what was received",
        (
            FastEdit(
                "flush_lsn = min(self.commit_lsn, self.end_lsn)",
                "flush_lsn = self.end_lsn",
                STREAM_PATH,
            ),
        ),
        turns_red=f"{QUORUM}[0]",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-to-a-lagging-member",
        "R8",
        "the fast path sends WAL only if all that stream have been sent the WAL before it",
        (Edit(f"{TEMPLATE}._keeps_up", "member.next_lsn == end_lsn", "True"),),
        turns_red=f"{STREAM}::test_a_lagging_member_has_no_template",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-puts-off-what-is-owed",
        "R10",
        "an announcement is put off only if appends have told what was owed",
        (
            FastEdit(
                "if not self.owed_lsn <= self.sent_commit_lsn < self.commit_lsn:",
                "if not self.sent_commit_lsn < self.commit_lsn:",
                STREAM_PATH,
            ),
        ),
        turns_red=ANNOUNCED + "both_paths_tell_of_a_commit_at_the_same_time[0]",
        why_named=NO_TIMES,
    ),
    Mutant(
        "fast-put-off-for-ever",
        "R10",
        "the core learns of the fast path's work after a few announcements that are put off",
        (FastEdit("self.put_offs == PUT_OFFS_MAX", "False", STREAM_PATH),),
        turns_red=ANNOUNCED
        + "an_announcement_that_would_only_be_asked_for_again_does_not_wake_the_core",
        why_named=NO_TIMES,
    ),
    Mutant(
        "fast-put-off-is-not-told",
        "R10",
        "the core learns what is owed since an announcement was put off",
        (Edit("Leader.on_stream_taken", "self._owed_lsn = Lsn(taken.owed_lsn)", "pass"),),
        turns_red=ANNOUNCED + "both_paths_tell_of_a_commit_at_the_same_time[0]",
        why_named=NO_TIMES,
    ),
    Mutant(
        "fast-tls-in-two-records",
        "tls_transport",
        "an append over TLS is one record if it fits in one",
        (FastEdit("if head_bytes + body_bytes <= RECORD_BYTES_MAX:", "if False:", FAST_CHANNEL),),
        turns_red=TLS + "an_append_is_one_record_if_it_fits[500-1]",
        why_named=NO_TLS,
    ),
    Mutant(
        "fast-tls-loses-what-the-socket-left",
        "tls_transport",
        "encrypted bytes that the socket has not taken are queued",
        (FastEdit("if sent < PyBytes_GET_SIZE(data):", "if False:", FAST_CHANNEL),),
        turns_red=TLS + "wal_arrives_whole_and_in_order_however_little_the_socket_takes",
        why_named=NO_TLS,
    ),
    Mutant(
        "fast-tls-that-is-broken-raises",
        "tls_transport",
        "an append that TLS refuses closes the link, and raises nothing",
        (FastEdit("self.sealed.on_refused(error)", "raise", FAST_CHANNEL),),
        turns_red=TLS + "an_append_that_tls_refuses_closes_the_link_and_raises_nothing",
        why_named=NO_TLS,
    ),
    Mutant(
        "standbys-wait-for-the-announcement",
        "R10",
        "a member with standbys is told of a commit at once, where no append will tell it",
        (
            FastEdit(
                "self.commit_lsn == self.end_lsn and leader.has_standbys", "False", STREAM_PATH
            ),
        ),
        turns_red=ANNOUNCED + "standbys_do_not_wait_for_the_announcement",
        why_named=NO_TIMES,
    ),
    Mutant(
        "the-core-learns-of-each-commit",
        "R10",
        "without standbys, the core learns of commits in bunches",
        (FastEdit("self.end_lsn and leader.has_standbys", "self.end_lsn", STREAM_PATH),),
        turns_red=ANNOUNCED + "without_standbys_the_core_learns_of_a_commit_later",
        why_named="it costs time alone",
    ),
)
