"""R23 without a server: proofs and what they are bound to, exit codes, the data directory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from walkeeper_cli.program import run
from walkeeper_common.ancestry.ancestry_facts import AnotherBranch, SameBranch, Unknown
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_restore import repeated_requests as patience
from walkeeper_restore.standby_check import proof, restored_standby
from walkeeper_restore.standby_check.checking import Checked, Where

NOBODY = "127.0.0.1:1"
WHERE = Where((("127.0.0.1", 1),), "main")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is that of a running server: our own pid stands for it."""
    (tmp_path / "pg_wal").mkdir()
    monkeypatch.chdir(tmp_path)
    started(tmp_path)
    return tmp_path


def started(data: Path, pid: int | None = None, at_s: int = 1000) -> None:
    text = f"{pid or os.getpid()}\n{data}\n{at_s}\n5432\n\n\n\nready\n"
    (data / "postmaster.pid").write_text(text)


def test_a_proof_is_owed_once_a_start(data: Path) -> None:
    assert proof.is_owed("key")
    proof.remember("key")
    assert not proof.is_owed("key") and proof.is_owed("another log's")
    started(data, at_s=1001)
    assert proof.is_owed("key"), "another start"
    proof.remember("key")
    started(data, pid=os.getppid(), at_s=1001)
    assert proof.is_owed("key"), "another postmaster"


def test_a_copy_of_a_directory_owes_a_proof_of_its_own(data: Path) -> None:
    proof.remember("key")
    content = (data / "postmaster.pid").read_bytes()
    (data / "copy").write_bytes(content)
    (data / "copy").rename(data / "postmaster.pid")
    assert proof.is_owed("key")


@pytest.mark.parametrize("content", ["", "no number\n", "1\n", "999999999\n/data\n1000\n"])
def test_without_a_running_server_nothing_is_owed(data: Path, content: str) -> None:
    """pg_rewind -c asks for WAL because its target is another branch."""
    (data / "postmaster.pid").write_text(content)
    assert not proof.is_owed("key")
    proof.remember("key")
    assert not list((data / "pg_wal").iterdir())
    (data / "postmaster.pid").unlink()
    assert not proof.is_owed("key")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"1 2 3 key"])
def test_a_damaged_proof_is_none(data: Path, content: bytes) -> None:
    (data / proof.PROOF).write_bytes(content)
    assert proof.is_owed("key")


def test_a_proof_that_cannot_be_written_is_owed_again(data: Path) -> None:
    (data / "pg_wal").rmdir()
    proof.remember("key")
    assert proof.is_owed("key")


def prove(monkeypatch: pytest.MonkeyPatch, *found: Checked, wait_s: float = 5) -> list[Checked]:
    """Prove, and return the checks that were not needed."""
    left = list(found)
    monkeypatch.setattr(restored_standby, "check", lambda data, where: left.pop(0))
    monkeypatch.setattr(patience, "PAUSE_S", 0.001)
    restored_standby.prove(WHERE, "key", name="00000002.history", wait_s=wait_s)
    return left


def test_the_same_branch_is_remembered(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Checked(Unknown("no quorum"))
    assert not prove(monkeypatch, unknown, unknown, Checked(SameBranch(Lsn(8))))
    assert not proof.is_owed("key")


def test_another_branch_is_refused_and_not_remembered(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=r"differs.*pg_basebackup.*Do not use pg_rewind"):
        prove(monkeypatch, Checked(AnotherBranch("its WAL differs", Lsn(8))))
    assert proof.is_owed("key")


def test_an_unknown_verdict_ends_after_the_wait(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=r"gave up after 0 s: it cannot be known.*no quorum"):
        prove(monkeypatch, Checked(Unknown("no quorum")), wait_s=0)
    assert proof.is_owed("key")


def test_a_server_out_of_the_logs_reach_goes_on_and_still_owes_its_proof(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not prove(monkeypatch, Checked(Unknown("before the log", out_of_reach=True)))
    assert proof.is_owed("key") and "before the log" in capsys.readouterr().err


def test_an_archive_alone_is_not_waited_for(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Checked(Unknown("the log has no timeline 2 yet"))]
    monkeypatch.setattr(restored_standby, "check", lambda files, where: found.pop())
    where = replace(WHERE, may_grow=False)
    restored_standby.prove(where, "key", name="00000002.history", wait_s=5)
    assert proof.is_owed("key") and "no timeline 2 yet" in capsys.readouterr().err


def test_exit_codes_without_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGDATA", raising=False)
    check = ["standby-check", "--safekeepers", NOBODY, "--wait", "0s"]
    assert run([*check, "-D", str(tmp_path)]) == 3
    assert "is it a data directory?" in capsys.readouterr().err
    assert run([*check]) == 2, "no -D"
    assert run([*check, "-D", str(tmp_path), "--bogus"]) == 2
    (tmp_path / "global").mkdir()
    (tmp_path / "global" / "pg_control").write_bytes(bytes(8192))
    assert run([*check, "-D", str(tmp_path)]) == 3


@pytest.mark.parametrize("name", [None, "standby.signal", "recovery.signal"])
def test_one_unit_serves_primary_and_standbys(tmp_path: Path, name: str | None) -> None:
    check = ["standby-check", "--safekeepers", NOBODY, "--wait", "0s", "-D", str(tmp_path)]
    assert run(check) == 3
    if name is not None:
        (tmp_path / name).touch()
    assert run([*check, "--standby-only"]) == (0 if name is None else 3)
