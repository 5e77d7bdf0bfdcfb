"""R23 with an archive alone: its timelines, its tail, and WAL on either side of a fork."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.common.test_pure_ancestry import Branch
from tests.support.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.layout import history_file, partial_file, segment_file
from walkeeper_common.ancestry.ancestry_facts import (
    AnotherBranch,
    Log,
    SameBranch,
    Server,
    Unknown,
    Verdict,
)
from walkeeper_common.ancestry.branch_comparison import compare
from walkeeper_common.lsn import Lsn
from walkeeper_restore import verdict as restoring
from walkeeper_restore.standby_check.archive_reader import ArchiveReader
from walkeeper_restore.standby_check.checking import judge

MB = 1 << 20


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return open_archive(f"file://{tmp_path}", "main", SYSTEM_ID)


def trunk() -> Branch:
    """Return WAL that a fork in the middle of its third segment follows."""
    branch = Branch(WalMaker(Random(7), segment_bytes=MB)).write_checkpoint()
    return branch.write(7000).commit(b"acknowledged").write(300)


def put(archive: Archive, branch: Branch, fork_lsn: Lsn) -> None:
    """Archive it as safekeepers do: each timeline's files, and the last tail."""
    wal, end_lsn = branch.maker, branch.end
    for at in range(wal.start_lsn, fork_lsn.round_down(MB), MB):
        archive.put(segment_file(1, Lsn(at), MB), wal.read(Lsn(at), Lsn(at + MB)))
    archive.put(history_file(2), branch.file)
    for at in range(fork_lsn.round_down(MB), end_lsn.round_down(MB), MB):
        archive.put(segment_file(2, Lsn(at), MB), wal.read(Lsn(at), Lsn(at + MB)))
    archive.put(partial_file(2, end_lsn, MB), wal.read(end_lsn.round_down(MB), end_lsn))


def judged(archive: Archive, server: Branch, facts: Server) -> Verdict:
    with ArchiveReader(archive, MB) as reader:
        log = reader.ask()
        assert isinstance(log, Log), log
        return judge(compare(facts, log), server.maker.read, reader.read)


@pytest.mark.parametrize("records", [3, 9000], ids=["a tail alone", "whole segments"])
def test_an_archive_tells_two_branches_apart(archive: Archive, records: int) -> None:
    old = trunk()
    fork_lsn = old.end
    log = old.fork().promote(2).write(records).commit(b"acknowledged")
    put(archive, log, fork_lsn)
    other = old.fork().promote(1).write(records).commit(b"never was...")
    assert judged(archive, log, log.server(segment_bytes=MB)) == SameBranch(log.end)
    assert judged(archive, old, old.server(segment_bytes=MB)) == SameBranch(fork_lsn)
    verdict = judged(archive, other, other.server(segment_bytes=MB))
    assert isinstance(verdict, AnotherBranch), verdict
    assert "another branch with the same number 2" in verdict.text
    # A base backup without WAL: pg_control's checkpoint is in the archive, or it is not.
    bare = log.server(segment_bytes=MB, end_lsn=None)
    assert isinstance(judged(archive, log, bare), SameBranch)


def test_a_branch_that_is_not_archived_cannot_be_known(archive: Archive) -> None:
    log = trunk()
    fork_lsn = log.end
    log.promote(2).write(9000)
    put(archive, log, fork_lsn)
    last = segment_file(2, log.end - MB, MB)
    for found in list(archive.objects(2)):
        if found.file == last:
            archive.delete(found)
    facts = log.server(segment_bytes=MB, end_lsn=log.end.round_down(MB), checkpoint=None)
    verdict = judged(archive, log, facts)
    assert isinstance(verdict, Unknown) and verdict.out_of_reach, verdict


def test_an_empty_archive_has_no_log(archive: Archive) -> None:
    with ArchiveReader(archive, MB) as reader:
        assert isinstance(reader.ask(), restoring.Unknown)
