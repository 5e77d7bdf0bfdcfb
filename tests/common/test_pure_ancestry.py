"""R23: a comparison of bytes tells a server's WAL from the log's. WAL that is made, no server."""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.support.wal_maker import SYSTEM_ID, Made, WalMaker
from walkeeper_common.ancestry.ancestry_facts import (
    AnotherBranch,
    Ask,
    Checkpoint,
    Log,
    SameBranch,
    Server,
    Side,
    Unknown,
    Verdict,
    remedy,
)
from walkeeper_common.ancestry.branch_comparison import compare
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import parse_timeline_file

SEGMENT_BYTES = 65536
CHECKPOINT_ONLINE, END_OF_RECOVERY = 0x10, 0x90
COMMIT, XACT = 0x00, 1


@dataclass
class Branch:
    """One server's WAL from its creation on. `promote` and `fork` are what a standby does."""

    maker: WalMaker = field(default_factory=lambda: WalMaker(Random(7)))
    file: bytes = b""
    checkpoint: Checkpoint | None = None
    second: int = 1000  # the time of its clock

    def write(self, records: int) -> Branch:
        for _ in range(records):
            self.maker.record(300)
        return self

    def commit(self, tag: bytes) -> Branch:
        self.maker.record(tag.ljust(40, b"."), COMMIT, XACT)
        return self

    def write_checkpoint(self) -> Branch:
        redo, timeline = self.maker.end_lsn, self.maker.timeline
        payload = struct.pack("<QII", redo, timeline, timeline) + b"\1" + bytes(7)
        payload += struct.pack("<Q", 700) + bytes(32) + struct.pack("<Q", self.second) + bytes(16)
        made = self.maker.record(payload, CHECKPOINT_ONLINE)
        self.checkpoint = Checkpoint(made.start_lsn, timeline, payload)
        return self

    def promote(self, microsecond: int, reason: str = "no recovery target specified") -> Branch:
        """Take the next number, as PostgreSQL does."""
        ended = self.maker.timeline
        self.file += f"{ended}\t{self.end}\t{reason}\n".encode()
        self.maker.timeline += 1
        payload = struct.pack("<qII", microsecond, self.maker.timeline, ended)
        self.maker.record(payload, END_OF_RECOVERY)
        return self

    def fork(self) -> Branch:
        return copy.deepcopy(self)

    @property
    def end(self) -> Lsn:
        return self.maker.end_lsn

    @property
    def last(self) -> Made:
        return self.maker.records[-1]

    def server(self, **changes: object) -> Server:
        facts = Server(
            system_id=SYSTEM_ID,
            segment_bytes=SEGMENT_BYTES,
            timeline=self.maker.timeline,
            timeline_file=self.file,
            end_lsn=self.end,
            checkpoint=self.checkpoint,
        )
        return replace(facts, **changes)  # type: ignore[arg-type]

    def log(self, **changes: object) -> Log:
        first = Fragment(NO_BALLOT, self.maker.start_lsn, 1, False, ("1#a",), 1)
        history = [first]
        for number, (_, end_lsn) in enumerate(parse_timeline_file(self.file), 2):
            lines = b"".join(self.file.splitlines(keepends=True)[: number - 1])
            ballot = Ballot(number, bytes(16))
            history.append(Fragment(ballot, end_lsn, number, False, ("1#a",), 1, lines))
        facts = Log(
            SYSTEM_ID, SEGMENT_BYTES, tuple(history), self.maker.start_lsn, self.end, self.end
        )
        return replace(facts, **changes)  # type: ignore[arg-type]


def judged(
    server: Branch,
    log: Branch,
    *,
    facts: Server | None = None,
    kept: Log | None = None,
    server_first: Lsn | None = None,
) -> Verdict:
    """Return the verdict; each side answers with the bytes that it keeps."""
    of, theirs = facts or server.server(), kept or log.log()
    comparing = compare(of, theirs)
    answer: bytes | None = None
    while True:
        try:
            ask = comparing.send(answer)
        except StopIteration as done:
            verdict: Verdict = done.value
            return verdict
        assert isinstance(ask, Ask) and ask.begin_lsn < ask.end_lsn
        if ask.side is Side.LOG:
            assert theirs.oldest_lsn <= ask.begin_lsn and ask.end_lsn <= theirs.end_lsn
            answer = log.maker.read(ask.begin_lsn, ask.end_lsn)
        elif ask.begin_lsn < (server_first or Lsn(0)) or of.end_lsn is None:
            answer = None
        else:
            answer = server.maker.read(ask.begin_lsn, ask.end_lsn)


def trunk() -> Branch:
    return Branch().write_checkpoint().write(30).commit(b"acknowledged").write(30)


def two_promotions(mine: int = 3, theirs: int = 3) -> tuple[Branch, Branch]:
    """Return two that took number 2 at one LSN, and wrote that many records."""
    old = trunk()
    server, log = old.fork().promote(1), old.fork().promote(2)
    for branch, records in ((server, mine), (log, theirs)):
        for _ in range(records):
            branch.maker.record(b"same on both".ljust(64, b"."))
    return server, log


@pytest.mark.parametrize(("mine", "theirs"), [(3, 3), (3, 900), (900, 3), (0, 0)])
def test_two_promotions_with_one_number_are_two_branches(mine: int, theirs: int) -> None:
    """At any length, the records differ in the time of the promotion alone."""
    server, log = two_promotions(mine, theirs)
    assert server.file == log.file
    verdict = judged(server, log)
    assert isinstance(verdict, AnotherBranch), verdict
    assert "another branch with the same number 2" in verdict.text
    assert not verdict.can_rewind and "Do not use pg_rewind" in remedy(verdict)
    fork_lsn = parse_timeline_file(log.file)[0][1]
    assert verdict.lsn is not None and verdict.lsn >= fork_lsn
    assert isinstance(judged(log, log), SameBranch) and isinstance(
        judged(server, server), SameBranch
    )


def test_equal_checkpoints_after_two_promotions_do_not_tell() -> None:
    """One script promotes both and runs CHECKPOINT within a second. The checkpoints are equal, and
    so is a megabyte around them. The promotions' own records are not."""
    server, log = two_promotions()
    for branch in (server, log):
        branch.maker._random = Random(3)
        branch.write(1500).write_checkpoint().write(1500)
    assert server.checkpoint == log.checkpoint
    assert isinstance(judged(server, log), AnotherBranch)


def test_a_checkpoint_tells_where_nothing_else_is_kept() -> None:
    log = trunk().write_checkpoint()
    oldest_lsn = log.end.round_down(SEGMENT_BYTES)
    assert log.maker.start_lsn <= oldest_lsn
    log.write(300).write_checkpoint().write(5)
    kept = log.log(oldest_lsn=log.end.round_down(SEGMENT_BYTES))
    assert log.checkpoint is not None and kept.oldest_lsn < log.checkpoint.lsn
    assert isinstance(judged(log, log, kept=kept), SameBranch)
    without = log.server(checkpoint=None, end_lsn=log.checkpoint.lsn)
    verdict = judged(log, log, kept=kept, facts=without)
    assert isinstance(verdict, Unknown) and verdict.out_of_reach


def test_a_standby_that_lags_the_log_is_on_its_branch() -> None:
    log = trunk()
    server = log.fork()
    log.write(2000).commit(b"later")
    assert judged(server, log) == SameBranch(server.end)


def test_wal_after_the_end_of_the_log_is_counted_and_no_branch() -> None:
    log = trunk()
    server = log.fork().write(5)
    assert judged(server, log) == SameBranch(log.end, server.end - log.end)


def test_no_server_waits_for_wal_that_is_not_known_to_be_committed() -> None:
    """After a power failure of all, the proposer that will tell may need this very server."""
    log = trunk().promote(1).write(3)
    commit_lsn = log.end
    log.commit(b"acknowledged?")
    kept = log.log(end_lsn=commit_lsn)
    assert judged(log.fork(), log, kept=kept) == SameBranch(commit_lsn, log.end - commit_lsn)
    server, _ = two_promotions()
    assert isinstance(judged(server, log, kept=kept), AnotherBranch)


def test_wal_after_the_end_of_the_log_hides_no_difference_below_it() -> None:
    old = trunk()
    log, server = old.fork().commit(b"acknowledged"), old.fork().commit(b"never was.").write(99)
    assert isinstance(judged(server, log), AnotherBranch)


def test_a_promotion_that_the_log_does_not_have_yet_cannot_be_known() -> None:
    log = trunk()
    server = log.fork().promote(1).write(3)
    verdict = judged(server, log)
    assert isinstance(verdict, Unknown) and not verdict.out_of_reach, verdict
    assert "no timeline 2 yet" in verdict.text
    # The log's history has the number, and no byte of it is committed.
    known = server.log(end_lsn=log.end, record_lsn=log.end)
    verdict = judged(server, log, kept=known)
    assert isinstance(verdict, Unknown) and "no committed WAL of timeline 2" in verdict.text


def test_a_promotion_that_left_out_wal_is_another_branch() -> None:
    old = trunk()
    server, log = old.fork().promote(1).write(3), old.fork().commit(b"acknowledged")
    verdict = judged(server, log)
    assert isinstance(verdict, AnotherBranch) and verdict.can_rewind, verdict
    assert f"left out {log.end - old.end} bytes" in verdict.text
    assert verdict.lsn == old.end


def test_a_deposed_primary_with_wal_of_its_own_may_be_rewound() -> None:
    old = trunk()
    server, log = old.fork().commit(b"of the deposed"), old.fork().promote(1).write(30)
    verdict = judged(server, log)
    assert isinstance(verdict, AnotherBranch) and verdict.can_rewind, verdict
    assert verdict.lsn == old.end and "pg_rewind --target-pgdata" in remedy(verdict)
    # A server that wrote no WAL since is on the log's branch, and follows.
    assert judged(old, log) == SameBranch(old.end)


def test_pg_rewind_is_not_named_for_two_branches_below_a_fork() -> None:
    """The log left timeline 2 at X; the server has WAL of another timeline 2 behind X."""
    server, log = two_promotions(20, 3)
    log.promote(9).write(3)
    verdict = judged(server, log)
    assert isinstance(verdict, AnotherBranch) and not verdict.can_rewind, verdict
    assert "the same number 2" in verdict.text


def test_their_histories_separate_promotions_at_different_places() -> None:
    old = trunk()
    server = old.fork().promote(1).write(30)
    log = old.fork().commit(b"acknowledged").promote(1).write(30)
    verdict = judged(server, log)
    assert isinstance(verdict, AnotherBranch) and verdict.can_rewind, verdict
    assert f"left timeline 1 at {old.end}" in verdict.text and verdict.lsn == old.end


def test_the_reasons_in_the_history_are_compared() -> None:
    old = trunk()
    server = old.fork().promote(1, "before transaction 700").write(3)
    log = old.fork().promote(1).write(3)
    verdict = judged(server, log)
    assert isinstance(verdict, AnotherBranch) and not verdict.can_rewind, verdict
    assert "'1 0/1" in verdict.text and "before transaction 700" in verdict.text


def test_a_timeline_that_the_log_passed_by_is_another_branch() -> None:
    old = trunk()
    server = old.fork().promote(1).write(3)
    log = old.fork()
    log.maker.timeline = 2  # number 3 is taken at the same place
    log.promote(2)
    log.file = log.file.replace(b"2\t", b"1\t")
    kept = log.log()
    last = replace(kept.history[-1], timeline=3, timeline_file=log.file)
    verdict = judged(server, log, kept=replace(kept, history=(kept.history[0], last)))
    assert isinstance(verdict, AnotherBranch), verdict
    assert "timeline 2, on which the log never was" in verdict.text


def test_pg_controls_checkpoint_is_compared_with_the_logs_record() -> None:
    """The server's pg_wal was replaced by the log's files: its data are of another branch."""
    server, log = two_promotions()
    server.second = 1001
    for branch in (server, log):
        branch.write_checkpoint().commit(b"same")
    facts = log.server(checkpoint=server.checkpoint)
    verdict = judged(log, log, facts=facts)
    assert isinstance(verdict, AnotherBranch) and "pg_control" in verdict.text, verdict
    assert server.checkpoint is not None and verdict.lsn == server.checkpoint.lsn
    # A base backup without WAL has nothing else.
    bare = replace(facts, end_lsn=None)
    assert isinstance(judged(log, log, facts=bare), AnotherBranch)
    assert isinstance(judged(log, log, facts=replace(bare, checkpoint=log.checkpoint)), SameBranch)


def test_the_next_xid_that_recovery_moves_on_is_not_compared() -> None:
    log = trunk().write_checkpoint()
    assert log.checkpoint is not None
    moved = bytearray(log.checkpoint.copy)
    moved[24:32] = struct.pack("<Q", 701)
    facts = log.server(checkpoint=replace(log.checkpoint, copy=bytes(moved)))
    assert isinstance(judged(log, log, facts=facts), SameBranch)


@pytest.mark.parametrize("short_by", range(0, 136, 8))
def test_a_checkpoint_across_pages_is_compared(short_by: int) -> None:
    log = trunk()
    while -log.end % 8192 > 400:
        log.maker.record(100)
    room = -log.end % 8192 - short_by - 26
    if room > 0:
        log.maker.record(room)
    log.write_checkpoint()
    assert log.checkpoint is not None
    bare = log.server(end_lsn=None)
    log.write(1)
    assert isinstance(judged(log, log, facts=bare), SameBranch)
    wrong = replace(log.checkpoint, copy=log.checkpoint.copy[:64] + bytes(24))
    verdict = judged(log, log, facts=replace(bare, checkpoint=wrong))
    assert isinstance(verdict, AnotherBranch)


def test_the_page_at_min_recovery_point_is_compared() -> None:
    """pg_wal was cut behind it, so the last pages do not show it: the log has a commit there."""
    server, log = two_promotions(200, 200)
    mark_lsn = server.end
    for branch in (server, log):
        branch.maker._random = Random(5)
        branch.write(300).commit(b"same on both")
    facts = server.server(checkpoint=None)
    assert isinstance(judged(server, log, facts=facts), SameBranch), "the last pages are equal"
    marked = replace(facts, min_recovery_lsn=mark_lsn, min_recovery_timeline=2)
    changed = bytearray(server.maker._data)
    at = mark_lsn - server.maker.start_lsn - 8
    changed[at] ^= 1
    server.maker._data = changed
    verdict = judged(server, log, facts=marked)
    assert isinstance(verdict, AnotherBranch) and verdict.lsn == mark_lsn - 8, verdict


def test_a_server_whose_wal_begins_after_the_logs_end_cannot_be_known_yet() -> None:
    """A base backup of the other branch, which is longer: nothing is common until the log grows."""
    server, log = two_promotions(900, 3)
    oldest_lsn = server.end.round_down(SEGMENT_BYTES)
    facts = server.server(checkpoint=None)
    verdict = judged(server, log, facts=facts, server_first=oldest_lsn)
    assert isinstance(verdict, Unknown) and not verdict.out_of_reach, verdict
    log.write(900)
    verdict = judged(server, log, facts=facts, server_first=oldest_lsn)
    assert isinstance(verdict, AnotherBranch)


def test_zeros_of_a_segment_that_was_restored_while_it_was_shorter_are_no_branch() -> None:
    """The primary fed the server further; then restore brought the segment's committed part."""
    log = trunk()
    end_lsn = log.end
    log.write(5).commit(b"later")
    server = log.fork()
    kept = end_lsn - server.maker.start_lsn
    server.maker._data[kept:] = bytes(len(server.maker._data) - kept)
    for shown in (end_lsn, None):
        facts = log.server(end_lsn=shown, min_recovery_lsn=log.end, min_recovery_timeline=1)
        assert isinstance(judged(server, log, facts=facts), SameBranch)


def test_wal_that_the_log_does_not_keep_any_more_is_out_of_reach() -> None:
    server = trunk()
    log = server.fork().write(3000).commit(b"later")
    verdict = judged(server, log, kept=log.log(oldest_lsn=log.end.round_down(SEGMENT_BYTES)))
    assert isinstance(verdict, Unknown) and verdict.out_of_reach, verdict
    assert f"its WAL ends at {server.end}" in verdict.text


def test_a_log_without_a_commit_is_compared_from_its_first_byte() -> None:
    log = Branch().write(30)
    assert judged(log, log, facts=log.server()) == SameBranch(log.end)
    other = Branch(WalMaker(Random(8))).write(30)
    assert isinstance(judged(other, log), AnotherBranch)


def test_another_cluster_is_refused_first() -> None:
    log = trunk()
    verdict = judged(log, log, facts=log.server(system_id=1))
    assert isinstance(verdict, AnotherBranch) and "another PostgreSQL cluster" in verdict.text


def test_a_backup_without_wal_after_the_logs_end_cannot_be_known_yet() -> None:
    log = trunk()
    server = log.fork().write_checkpoint()
    verdict = judged(server, log, facts=server.server(end_lsn=None))
    assert isinstance(verdict, Unknown) and not verdict.out_of_reach, verdict
