"""The simulator's judges: each passes what is right and fails what it is there for.

An oracle that cannot fail proves nothing. Mutants show that they can in real runs; here each one
is shown its own kind of wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.proof.sim.oracle import (
    Acknowledged,
    Admission,
    Authorship,
    Closed,
    Committed,
    Durability,
    Leaders,
    Promises,
    Reading,
    Violation,
)
from tests.proof.sim.proposer_claims import ProposerClaims
from tests.support.faulty_disk import SECTOR, FaultyDisk
from tests.support.sound_server import SOUND_SERVER
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_proposer.consensus.admission import LogEnd, lost_wal
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity

START = Lsn(0x10000)
FIRST, SECOND = Ballot(1, b"a" * 16), Ballot(2, b"b" * 16)


def entry(ballot: Ballot, start_lsn: Lsn, *, sealed: bool = False) -> Fragment:
    return Fragment(ballot, start_lsn, 1, sealed, ("1#00",), 1)


def test_acknowledged_bytes_may_be_reported_again_and_never_others() -> None:
    acknowledged = Acknowledged(START)
    acknowledged.acknowledge("pg1", START, b"abcd", FIRST)
    acknowledged.acknowledge("pg2", START + 2, b"cdef", SECOND)
    assert bytes(acknowledged.wal) == b"abcdef"
    with pytest.raises(Violation, match=r"Acknowledged: pg3 was told of other bytes at 0/10003"):
        acknowledged.acknowledge("pg3", START + 2, b"cX", SECOND)


def test_a_log_must_have_what_was_acknowledged_under_smaller_ballots() -> None:
    acknowledged = Acknowledged(START)
    acknowledged.acknowledge("pg1", START, b"abcd", FIRST)
    acknowledged.acknowledge("pg1", START + 4, b"efgh", SECOND)
    assert acknowledged.end_below(FIRST) == START
    assert acknowledged.end_below(SECOND) == START + 4
    acknowledged.hold_against("p2", b"abcd", START, acknowledged.end_below(SECOND))
    with pytest.raises(Violation, match="lacks acknowledged bytes from 0/10004"):
        acknowledged.hold_against("p3", b"abcd", START)
    with pytest.raises(Violation, match="lacks acknowledged bytes from 0/10002"):
        acknowledged.hold_against("p3", b"abXd", START, START + 4)


def test_committed_bytes_are_the_same_for_everybody() -> None:
    committed = Committed(START)
    committed.check("sk1", START, b"abcd")
    committed.check("sk2", START + 2, b"cdef")
    with pytest.raises(Violation, match="sk3 committed other bytes"):
        committed.check("sk3", START + 4, b"eX")


def test_a_log_is_what_its_history_says() -> None:
    authorship = Authorship()
    authorship.begins(FIRST, START)
    authorship.wrote(FIRST, START, b"abcdef")
    authorship.begins(SECOND, START + 4)
    authorship.wrote(SECOND, START + 4, b"EFGH")
    history = (entry(NO_BALLOT, START), entry(FIRST, START), entry(SECOND, START + 4))
    authorship.check("sk1", history, START, b"abcdEF")
    authorship.check("sk1", history[:2], START + 2, b"cdef")
    with pytest.raises(Violation, match="sk2 has bytes at 0/10004"):
        authorship.check("sk2", history, START, b"abcdef")
    with pytest.raises(Violation, match="sk2 has bytes at 0/10008"):
        authorship.check("sk2", history, START + 4, b"EFGHi")  # no proposer ever wrote it
    with pytest.raises(Violation, match="took WAL at 0/10009"):
        authorship.wrote(SECOND, START + 9, b"I")


def test_a_promise_is_kept_and_a_vote_is_final() -> None:
    promises = Promises()
    promises.granted("sk1", SECOND, START + 8)
    promises.granted("sk1", SECOND, START + 8)
    promises.log_ends("sk1", FIRST, START + 8)
    promises.log_ends("sk1", SECOND, START + 20)  # its own leader made it longer
    with pytest.raises(Violation, match="sk1 voted 2:"):
        promises.log_ends("sk1", FIRST, START + 9)
    with pytest.raises(Violation, match="sk1 forgot its promise"):
        promises.speaks_as("sk1", FIRST)
    with pytest.raises(Violation, match="sk1 forgot its promise"):
        promises.granted("sk1", FIRST, START)


def test_one_leader_a_ballot_and_one_ballot_a_leader() -> None:
    leaders = Leaders()
    leaders.elected(FIRST, "p1")
    leaders.elected(FIRST, "p1")
    with pytest.raises(Violation, match="was won by p1 and by p2"):
        leaders.elected(FIRST, "p2")
    with pytest.raises(Violation, match="p1 was elected with"):
        leaders.elected(SECOND, "p1")


def two_of_three(names: Sequence[str]) -> bool:
    return len(names) >= 2


def test_acknowledged_bytes_are_on_disk() -> None:
    durability = Durability()
    durability.check("sk1", "acknowledged", START, b"ab", b"ab")
    durability.check_quorum("p1", START, ["sk1", "sk2"], two_of_three)
    with pytest.raises(Violation, match="a power cut would lose some"):
        durability.check("sk1", "acknowledged", START, b"a", b"ab")
    with pytest.raises(Violation, match=r"only \['sk1'\] have it on disk"):
        durability.check_quorum("p1", START, ["sk1"], two_of_three)


def test_a_proposer_that_must_be_refused_never_leads() -> None:
    admission = Admission()
    admission.check_timelines("p1", [(1, START)], {1: LSN_MAX})
    ends = {1: START, 2: START + 8, 3: LSN_MAX}
    admission.check_timelines("p1", [(1, START), (2, START + 8)], ends)
    admission.check_seal("p1", entry(FIRST, START, sealed=True), resumes=True)
    admission.check_seal("p1", entry(FIRST, START), resumes=False)
    admission.check_member("sk1", is_lost=False)
    with pytest.raises(Violation, match="the log on timeline 1 ends"):
        admission.check_timelines("p1", [(1, START + 1)], {1: START, 2: LSN_MAX})
    with pytest.raises(Violation, match="the log on timeline 2 ends"):
        admission.check_timelines("p1", [(1, START), (2, START)], {1: START, 3: LSN_MAX})
    with pytest.raises(Violation, match="left timeline 1"):
        admission.check_timelines("p1", [(1, START), (2, START + 8)], {1: START + 8, 2: LSN_MAX})
    with pytest.raises(Violation, match="behind the seal"):
        admission.check_seal("p1", entry(FIRST, START, sealed=True), resumes=False)
    with pytest.raises(Violation, match="has lost its promises"):
        admission.check_member("sk1", is_lost=True)
    with pytest.raises(Violation, match="its vote ended at"):
        Reading().check_voter("sk1", START + 9, START + 8)


def test_a_closed_log_ends_where_it_was_closed() -> None:
    closed = Closed()
    closed.check_leader("p1", SECOND)
    closed.check_commit("p1", START + 9)
    closed.report("p2", SECOND, START + 8)
    closed.report("p3", SECOND, START + 8)
    closed.check_leader("p1", SECOND)
    closed.check_commit("p1", START + 8)
    with pytest.raises(Violation, match="p4 closes the log at"):
        closed.report("p4", SECOND, START + 9)
    with pytest.raises(Violation, match="p5 leads"):
        closed.check_leader("p5", Ballot(SECOND.term + 1, b"z" * 16))
    with pytest.raises(Violation, match="p1 commits up to"):
        closed.check_commit("p1", START + 9)


def test_a_server_that_has_the_log_is_not_refused_for_lost_wal() -> None:
    admission = Admission()
    admission.check_lost("p1", START, has_it=False)
    with pytest.raises(Violation, match="p1 refused a server for lost WAL below 0/10000"):
        admission.check_lost("p1", START, has_it=True)


@pytest.mark.parametrize(
    ("written", "had", "is_wrong"),
    [
        (b"abcd", b"abcd", True),
        (b"abcd", b"abcX", False),
        (b"abcd", b"abc", False),
        (b"", b"", False),
    ],
    ids=("all", "other bytes", "less", "an empty log"),
)
def test_a_refusal_is_judged_by_the_bytes_of_the_server(
    written: bytes, had: bytes, is_wrong: bool
) -> None:
    """A server behind the beginning of an empty log may pass it until its refusal is judged."""
    authorship, end_lsn = Authorship(), START + len(written)
    authorship.begins(FIRST, START)
    authorship.wrote(FIRST, START, written)
    history = (entry(FIRST, START),)
    configuration: Any = None
    log = LogEnd(configuration, history, end_lsn, end_lsn)
    asked = PrimaryIdentity(7, 1, START - 1, 1 << 20, **SOUND_SERVER)
    claims, admission = ProposerClaims(), Admission()
    facts: Any = claims
    facts.name, facts._check = "p1", SimpleNamespace(primary=asked, log=log)
    maker = SimpleNamespace(read=lambda begin, end: had[begin - START : end - START])
    facts.primary = SimpleNamespace(flush_lsn=START + len(had), maker=maker)
    facts.oracles = SimpleNamespace(admission=admission, authorship=authorship)
    refusal = lost_wal(asked, log)
    assert refusal is not None
    if is_wrong:
        with pytest.raises(Violation, match="but the server has it"):
            claims._judge_refusal(refusal)
    else:
        claims._judge_refusal(refusal)
    claims._judge_refusal(f"{refusal}, or another reason")


def test_a_power_cut_garbles_only_what_was_not_synced() -> None:
    for seed in range(200):
        disk = FaultyDisk(Random(seed))
        disk.allocate("wal", 4 * SECTOR)
        disk.sync_directory()
        disk.write_at("wal", 0, [b"s" * 700])
        disk.sync_data("wal")
        disk.write_at("wal", 700, [b"n" * 700])
        survivor = disk.crash(garbles=True)
        data = survivor.read_at("wal", 0, 4 * SECTOR)
        assert data[:700] == b"s" * 700
        assert data[1400:] == bytes(4 * SECTOR - 1400)
        wrong = [byte for byte in data[700:1400] if byte not in b"n\0"]
        assert len(wrong) <= 2, f"{seed=} more than a bit a sector"
    assert survivor.size("wal") == 4 * SECTOR
