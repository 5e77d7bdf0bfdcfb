"""The WAL that `walkeeper restore` may hand out, and the proof that "there is no such WAL".

Three members, an ack quorum of two: two answers are a vote quorum. Segments of 1 MB.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest

from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.quorum import Configuration, LogKind, acknowledged_lsn
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_restore import repeated_requests as patience
from walkeeper_restore import restored_server
from walkeeper_restore.restored_server import parse_postmaster_opts
from walkeeper_restore.verdict import (
    Absent,
    Gone,
    Misconfigured,
    Part,
    Unknown,
    Verdict,
    Whole,
    judge_segment,
)

MB = 1 << 20
MEMBERS = tuple(f"{number}#{number:032x}" for number in (1, 2, 3))
LOG = Configuration(
    1, b"u" * 16, 7, MB, "15.18", LogKind.PHYSICAL, Lsn(3 * MB), 1, MEMBERS, 2
)  # fmt: skip


def entry(term: int, start: int, timeline: int = 1) -> Fragment:
    ballot = Ballot(term, bytes([term]) * 16) if term else NO_BALLOT
    return Fragment(ballot, Lsn(start), timeline, False, MEMBERS, 2)


CREATED = entry(0, 3 * MB)
FIRST = (CREATED, entry(1, 3 * MB))


def greeting(
    number: int,
    flush: int,
    commit: int,
    history: tuple[Fragment, ...] = FIRST,
    *,
    first: int = 3 * MB,
    record: int | None = None,
    configuration: Configuration | None = LOG,
) -> AcceptorGreeting:
    return AcceptorGreeting(
        acceptor_id=number,
        incarnation=number.to_bytes(16, "big"),
        log_uuid=LOG.log_uuid,
        configuration=configuration,
        ballot=history[-1].ballot,
        history=history,
        oldest_lsn=Lsn(first),
        flush_lsn=Lsn(flush),
        record_lsn=Lsn(flush if record is None else record),
        commit_lsn=Lsn(commit),
        live=None,
    )


def judge(number: int, *greetings: AcceptorGreeting, timeline: int = 1, **more: Lsn) -> Verdict:
    name = segment_name(timeline, Lsn(number * MB), MB)
    return judge_segment(name, dict(enumerate(greetings)), **more)


def test_a_whole_committed_segment_needs_one_safekeeper() -> None:
    alone = greeting(3, 6 * MB, 5 * MB)
    assert judge(4, alone) == Whole(Lsn(4 * MB), Lsn(5 * MB), (0,))
    assert isinstance(judge(5, alone), Unknown)
    assert isinstance(judge(3), Unknown)


def test_a_segment_is_a_part_while_the_record_at_its_end_goes_on() -> None:
    """Its primary may never finish that record, and then there is other WAL in its place."""
    both = [greeting(n, 6 * MB, 6 * MB, record=5 * MB - 800) for n in (1, 2)]
    part = Part(Lsn(4 * MB), Lsn(5 * MB), MB, (0, 1))
    assert judge(4, *both) == part
    assert isinstance(judge(4, both[0]), Unknown)
    assert judge(3, both[0]) == Whole(Lsn(3 * MB), Lsn(4 * MB), (0,))


def test_the_end_of_the_log_needs_a_vote_quorum() -> None:
    one, two = greeting(1, 5 * MB + 100, 5 * MB + 100), greeting(2, 5 * MB + 100, 5 * MB + 50)
    assert isinstance(judge(5, one), Unknown)
    assert isinstance(judge(6, one), Unknown)
    assert judge(5, one, two) == Part(Lsn(5 * MB), Lsn(5 * MB + 100), MB, (0,))
    assert isinstance(judge(6, one, two), Absent)


def test_the_same_safekeeper_twice_is_one() -> None:
    assert isinstance(judge(6, greeting(1, 5 * MB, 5 * MB), greeting(1, 5 * MB, 5 * MB)), Unknown)


def test_a_wiped_member_does_not_count() -> None:
    wiped = greeting(4, 5 * MB, 5 * MB)
    assert isinstance(judge(6, greeting(1, 5 * MB, 5 * MB), wiped), Unknown)


def test_the_end_is_never_below_wal_that_may_have_been_acknowledged() -> None:
    ahead, behind = greeting(1, 5 * MB + 100, 5 * MB), greeting(2, 5 * MB, 5 * MB)
    verdict = judge(5, ahead, behind)
    assert isinstance(verdict, Unknown) and "walkeeper settle" in verdict.text
    assert isinstance(judge(6, ahead, behind), Unknown)
    # Half a record holds no commit.
    torn = greeting(1, 5 * MB + 100, 5 * MB, record=5 * MB)
    assert isinstance(judge(5, torn, behind), Absent)


def test_without_an_ack_quorum_nobody_is_sent_to_settle_before_it_is_up() -> None:
    """2 of 2: one is a vote quorum, and knows where the log may end, but cannot settle."""
    pair = replace(LOG, members=MEMBERS[:2])
    ahead = greeting(1, 5 * MB + 100, 5 * MB, configuration=pair)
    verdict = judge(5, ahead)
    assert isinstance(verdict, Unknown), verdict
    assert "an ack quorum (2 of 2) has to be up" in verdict.text
    assert "start safekeeper 2 with its disk" in verdict.text


def test_wal_that_a_deposed_term_left_was_never_acknowledged() -> None:
    old = greeting(1, 5 * MB + 900, 5 * MB)
    later = (CREATED, entry(1, 3 * MB), entry(2, 5 * MB + 10))
    new = greeting(2, 5 * MB + 20, 5 * MB + 20, later)
    assert judge(5, old, new) == Part(Lsn(5 * MB), Lsn(5 * MB + 20), MB, (1,))


def test_under_load_the_bound_of_the_first_round_is_enough() -> None:
    one, two = greeting(1, 5 * MB + 200, 5 * MB + 100), greeting(2, 5 * MB + 200, 5 * MB + 90)
    assert isinstance(judge(5, one, two), Unknown)
    verdict = judge(5, one, two, reach_lsn=Lsn(5 * MB + 95))
    assert verdict == Part(Lsn(5 * MB), Lsn(5 * MB + 100), MB, (0,))


def test_min_lsn_is_reached_or_nothing_is_the_end() -> None:
    both = [greeting(n, 5 * MB + 100, 5 * MB + 100) for n in (1, 2)]
    assert isinstance(judge(5, *both, min_lsn=Lsn(5 * MB + 101)), Unknown)
    assert isinstance(judge(5, *both, min_lsn=Lsn(5 * MB + 100)), Part)


def test_removed_wal_is_not_absent() -> None:
    kept = [greeting(n, 9 * MB, 9 * MB, first=6 * MB) for n in (1, 2, 3)]
    assert isinstance(judge(5, *kept), Gone)
    assert isinstance(judge(2, *kept), Gone)  # from before the log was created
    assert isinstance(judge(5, *kept[:2]), Unknown)  # the third may keep it


def test_wal_that_one_member_holds_is_read_there() -> None:
    """It may be the one that is no newcomer, and answers last (M8)."""
    late = [greeting(n, 9 * MB, 9 * MB, first=6 * MB) for n in (1, 2)]
    holder = greeting(3, 9 * MB, 9 * MB)
    assert judge(5, *late, holder) == Whole(Lsn(5 * MB), Lsn(6 * MB), (2,))
    assert judge(5, holder, *late) == Whole(Lsn(5 * MB), Lsn(6 * MB), (0,))


def test_a_timeline_ends_at_its_fork_and_the_next_one_starts_with_its_parents_bytes() -> None:
    history = (*FIRST, entry(2, 5 * MB + 64, 2))
    both = [greeting(n, 7 * MB, 7 * MB, history) for n in (1, 2)]
    assert judge(4, *both) == Whole(Lsn(4 * MB), Lsn(5 * MB), (0, 1))
    assert judge(5, *both) == Part(Lsn(5 * MB), Lsn(5 * MB + 64), MB, (0, 1))
    assert isinstance(judge(6, *both), Absent)
    assert judge(5, *both, timeline=2) == Whole(Lsn(5 * MB), Lsn(6 * MB), (0, 1))
    assert isinstance(judge(4, *both, timeline=2), Absent)
    assert isinstance(judge(5, *both, timeline=3), Absent)


def test_two_logs_under_one_name_are_refused() -> None:
    other = Configuration(
        1, b"v" * 16, 8, MB, "15.18", LogKind.PHYSICAL, Lsn(3 * MB), 1, MEMBERS, 2
    )  # fmt: skip
    with pytest.raises(Misconfigured):
        judge(5, greeting(1, 1, 1), greeting(2, 1, 1, configuration=other))
    with pytest.raises(Misconfigured):
        judge_segment("0000000100000000FFFFFFFF", {0: greeting(1, 1, 1)})


def test_a_logical_log_is_a_misconfiguration_whatever_is_asked_of_it() -> None:
    """It has the primary's system_id, and its segments are named like WAL."""
    logical = replace(LOG, kind=LogKind.LOGICAL)
    for number in (3, 4, 5, 99):
        for count in (1, 2, 3):
            logs = [greeting(n, 5 * MB, 5 * MB, configuration=logical) for n in (1, 2, 3)]
            with pytest.raises(Misconfigured, match=r"is logical: .* physical log in --cluster"):
                judge(number, *logs[:count])


def test_no_pair_leaves_out_what_two_members_have_flushed() -> None:
    """Any flush positions, anything known to be committed: against the rule of a commit."""
    random = Random(7)
    for _ in range(3000):
        flushes = [Lsn(5 * MB + random.randrange(6)) for _ in MEMBERS]
        acknowledged = acknowledged_lsn(flushes, LOG.ack_quorum)
        logs = [
            greeting(n, f, random.randint(5 * MB, min(f, acknowledged)))
            for n, f in enumerate(flushes, 1)
        ]
        for pair in itertools.combinations(logs, 2):
            match judge(5, *pair):
                case Part(_, end_lsn, _, _):
                    assert end_lsn >= acknowledged, f"{flushes=} {pair=}"
                case Absent():
                    assert acknowledged == 5 * MB, f"{flushes=} {pair=}"
                case verdict:
                    assert isinstance(verdict, Unknown)


def test_postmaster_opts_are_read_as_they_are_written() -> None:
    line = '/usr/lib/postgresql/15/bin/postgres "-D" "data" "-c" "config_file=/a b/x.conf"\n'
    program, words = parse_postmaster_opts(line)
    assert program == "/usr/lib/postgresql/15/bin/postgres"
    assert words == ["-D", ".", "-c", "config_file=/a b/x.conf"]
    assert parse_postmaster_opts("/bin/postgres\n") == ("/bin/postgres", [])


def test_a_standby_that_waits_long_says_that_a_changed_command_needs_a_restart(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "SAY_FIRST_S", 0.0)
    monkeypatch.setattr(patience, "SAY_S", 0.2)
    monkeypatch.setattr(patience, "check_wanted", lambda: None)
    monkeypatch.setattr(restored_server, "is_standby", lambda: True)
    asked: list[str | Unknown] = [*[Unknown("no quorum")] * 6, "found"]
    assert patience.until_known("00000002.history", 0.0, lambda: asked.pop(0)) == "found"
    first, *_, last = capfd.readouterr().err.splitlines()
    assert "no quorum" in first and "restart" not in first
    assert last.endswith("if restore_command was changed meanwhile, restart this server")
