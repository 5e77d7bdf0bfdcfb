"""The door of `walkeeper gate --exec` behind crashes, other servers and odd files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gated_starts import ROLES, RULES, own_files, server_door  # noqa: F401
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from walkeeper_admin import gated_server
from walkeeper_admin.closed_start import wait_durable
from walkeeper_admin.gated_server import Guard, open_when_durable
from walkeeper_admin.primary.door import Door, OwnFiles
from walkeeper_admin.primary.gated_start import may_show_more_than_the_log
from walkeeper_admin.primary.hba_rules import narrowed
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_restore.verdict import Misconfigured


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create() as made:
        yield made


def test_a_start_goes_on_behind_a_crash_while_it_wrote_a_file(
    tmp_path: Path, door: Door, own: OwnFiles
) -> None:
    """The rest of a write was taken for a number, so no start closed the door any more."""
    first = door.close(own, ROLES)
    (tmp_path / "data.gate" / "closed_7.new").write_text("half a ru")
    second = door.close(own, ROLES)
    assert door.ticket() == second != first
    assert not list((tmp_path / "data.gate").glob("*.new"))


def test_rules_in_any_encoding_are_narrowed(tmp_path: Path, door: Door, own: OwnFiles) -> None:
    Path(own.hba_file).write_bytes("# B\xfcro\n".encode("latin-1") + RULES.encode())
    door.close(own, ROLES)
    rules = (tmp_path / "data.gate" / "pg_hba.conf").read_bytes()
    assert rules.endswith(b'local all "postgres","replicator" trust\n')


def test_the_closed_rules_are_for_the_servers_user_alone(
    tmp_path: Path, door: Door, own: OwnFiles
) -> None:
    """pg_hba.conf may have ldapbindpasswd, and a directory of --door may be open to others."""
    (tmp_path / "data.gate").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        door.close(own, ROLES)
    finally:
        os.umask(before)
    assert (tmp_path / "data.gate" / "pg_hba.conf").stat().st_mode & 0o077 == 0


def test_a_command_with_the_files_of_the_door_is_refused(
    tmp_path: Path, door: Door, own: OwnFiles
) -> None:
    """pg_ctl restart repeats the last start's arguments: the files would include themselves."""
    door.close(own, ROLES)
    gate = tmp_path / "data.gate"
    inside = OwnFiles(str(gate / "postgresql.conf"), str(gate / "pg_hba.conf"), own.ident_file)
    for change in (door.close, door.prepare):
        with pytest.raises(Refused, match="pg_ctl restart"):
            change(inside, ROLES)
    assert door.open() and (gate / "pg_hba.conf").read_text() == RULES


def test_a_door_of_another_data_directory_is_refused(tmp_path: Path, own: OwnFiles) -> None:
    """Two servers with one --door: the second one's quorum had opened the first one, too."""
    first, second = tmp_path / "first", tmp_path / "second"
    for data in (first, second):
        data.mkdir()
    shared = tmp_path / "door"
    ticket = Door.beside(first, shared).close(own, ROLES)
    for change in (Door.beside(second, shared).close, Door.beside(second, shared).prepare):
        with pytest.raises(Refused, match=f"is that of {first}"):
            change(own, ROLES)
    assert Door.beside(first, shared).ticket() == ticket
    first.rename(tmp_path / "moved")
    assert Door.beside(tmp_path / "moved", shared).close(own, ROLES) != ticket


@pytest.mark.parametrize("users", ["+remote", "/^app", '"/^app, x"', "postgres,+remote"])
@pytest.mark.parametrize("place", ["10.0.0.0/8", "10.0.0.0 255.0.0.0", "fe80::1 ffff::", "samenet"])
def test_a_group_that_is_rejected_stays_so(users: str, place: str) -> None:
    """Without this rule a later one admits members of the group that are among the roles."""
    rules = f"host all {users} {place} reject\nlocal all {users} reject\nhost all all all md5\n"
    assert narrowed(rules, ROLES, kept="x").splitlines()[2:4] == rules.splitlines()[:2]


def test_a_group_that_is_admitted_is_left_out() -> None:
    rules = "host all +remote reject trust\nhost all +remote 10.0.0.1 reject.local trust\n"
    assert len(narrowed(f"{rules}local all all peer\n", ROLES, kept="x").splitlines()) == 3


def test_a_primary_that_crashed_in_an_exclusive_backup_is_closed(tmp_path: Path) -> None:
    """Before PostgreSQL 15 a primary itself has a backup_label meanwhile."""
    (tmp_path / "standby.signal").touch()
    label = tmp_path / "backup_label"
    label.write_text("BACKUP METHOD: pg_start_backup\nBACKUP FROM: primary\n")
    assert may_show_more_than_the_log(tmp_path)
    for method in ("streamed", "pg_rewind"):
        label.write_text(f"BACKUP METHOD: {method}\nBACKUP FROM: standby\n")
        assert not may_show_more_than_the_log(tmp_path)


def said_until_open(
    monkeypatch: pytest.MonkeyPatch,
    closed: tuple[Door, OwnFiles],
    waits: list[Misconfigured | Lsn],
    reloads: list[Refused | None],
) -> list[str]:
    """Return what the background says until the door is open, if the server answers so."""
    door, own = closed

    async def wait(dsn: str, data: Path, say: object) -> Lsn:
        answer = waits.pop(0)
        if isinstance(answer, Misconfigured):
            raise answer
        return answer

    async def reload(dsn: str) -> None:
        if (answer := reloads.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(gated_server, "POLL_S", 0)
    monkeypatch.setattr(gated_server, "wait_durable", wait)
    monkeypatch.setattr(gated_server, "reload_rules", reload)
    said: list[str] = []
    guard = Guard("", Path("/none"), door, os.getpid(), None)
    opened = asyncio.run(open_when_durable(guard, door.close(own, ROLES), say=said.append))
    assert opened is not None and opened.lsn == 7 and not waits and not reloads
    return said


def test_an_open_door_is_loaded_though_the_first_reload_fails(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    """The background had ended, and the server kept the closed rules with nobody to reload."""
    full = Refused("too many clients")
    said = said_until_open(monkeypatch, (door, own), [Lsn(7)], [full, full, None])
    assert said == ["open, but not loaded yet: too many clients"]


def test_a_log_that_is_not_there_yet_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    """The background had ended, and then not even a promotion opened the server."""
    waits: list[Misconfigured | Lsn] = [Misconfigured("no such log"), Lsn(7)]
    assert said_until_open(monkeypatch, (door, own), waits, [None]) == ["closed: no such log"]


@pytest.mark.postgres
def test_a_commit_on_another_server_opens_no_door(
    server: PostgresServer, tmp_path: Path, door: Door, own: OwnFiles
) -> None:
    """A --dsn of a proxy or of a neighbour's port had opened a server that no quorum has."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(Refused, match="does not run"):
        asyncio.run(wait_durable(server.dsn(), elsewhere, print))
    lines = (server.data / "postmaster.pid").read_text().splitlines()
    lines[2] = str(int(lines[2]) - 1)  # the same number of a process, a second earlier
    (elsewhere / "postmaster.pid").write_text("\n".join(lines))
    with pytest.raises(Refused, match="another server than that of"):
        asyncio.run(wait_durable(server.dsn(), elsewhere, print))
    with pytest.raises(Refused, match="is empty, so commits wait for no quorum"):
        asyncio.run(wait_durable(server.dsn(), server.data, print))


@pytest.mark.postgres
def test_a_cancelled_wait_is_noticed_whatever_messages_the_role_gets(
    server: PostgresServer,
) -> None:
    """PostgreSQL says in a warning alone that no quorum has confirmed the commit."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    role = server.sql("SELECT current_user")

    async def cancelled() -> None:
        waiting = asyncio.create_task(wait_durable(server.dsn(), server.data, print))
        await asyncio.to_thread(wait_until, lambda: server.sql(waits) == 1)
        await asyncio.to_thread(server.sql, cancel)
        await waiting

    server.sql(f'ALTER ROLE "{role}" SET client_min_messages = error')
    server.configure({"synchronous_standby_names": "FIRST 1 (walkeeper)"})
    server.reload()
    wait_until(lambda: server.sql("SHOW synchronous_standby_names"))
    try:
        with pytest.raises(Refused, match="canceling wait for synchronous replication"):
            asyncio.run(cancelled())
    finally:
        server.configure({"synchronous_standby_names": ""})
        server.reload()
