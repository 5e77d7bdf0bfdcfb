"""The door of `walkeeper gate --exec` behind crashes, other servers and odd files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from walkeeper_admin.primary.door import Door, OwnFiles
from walkeeper_admin.primary.gated_start import may_show_more_than_the_log
from walkeeper_admin.primary.hba_rules import narrowed
from walkeeper_common.errors import Refused

ROLES = ("postgres", "replicator")
RULES = "local all all trust\n"


@pytest.fixture
def own(tmp_path: Path) -> OwnFiles:
    (tmp_path / "pg_hba.conf").write_text(RULES)
    names = ("postgresql.conf", "pg_hba.conf", "pg_ident.conf")
    return OwnFiles(*(str(tmp_path / name) for name in names))


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "data.gate")


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
