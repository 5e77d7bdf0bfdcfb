"""`walkeeper gate --exec` without a server: which starts are closed, and what opens them."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.support.gated_starts import ROLES, RULES, own_files, server_door  # noqa: F401
from tests.support.postgres_server import PostgresServer, initialised_directory
from tests.support.waiting import wait_until
from walkeeper_admin import gated_server
from walkeeper_admin.closed_start import Opened
from walkeeper_admin.gated_server import Guard, open_when_durable
from walkeeper_admin.primary import gated_start
from walkeeper_admin.primary.door import STATE_PARAMETER, Door, OwnFiles
from walkeeper_admin.primary.gated_start import (
    in_background,
    may_show_more_than_the_log,
    prepare,
)
from walkeeper_admin.primarys_answer import asked_primary
from walkeeper_cli.program import run
from walkeeper_common.ancestry.ancestry_facts import SameBranch, Unknown, Verdict
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.control_data import CRC_OFFSETS, State
from walkeeper_proposer.postgres.primary_sql import NotConnected
from walkeeper_restore.standby_check.checking import Checked, Where

LOG = Where((("127.0.0.1", 1),), "main")


def rules_of(tmp_path: Path) -> str:
    return (tmp_path / "data.gate" / "pg_hba.conf").read_text()


def test_a_closed_door_shows_the_rules_of_the_roles_alone_whatever_rewrites_them(
    tmp_path: Path, door: Door, own: OwnFiles
) -> None:
    ticket = door.close(own, ROLES)
    assert door.ticket() == ticket
    assert rules_of(tmp_path).splitlines()[2:] == ['local all "postgres","replicator" trust']
    Path(own.hba_file).write_text(RULES * 2)  # as Patroni does
    assert '"postgres","replicator"' in rules_of(tmp_path)
    assert door.open(ticket) and door.ticket() is None
    Path(own.hba_file).write_text(RULES * 3)
    assert rules_of(tmp_path) == RULES * 3, "an open server follows its own file"
    assert not door.open()
    configuration = (tmp_path / "data.gate" / "postgresql.conf").read_text()
    assert f"include '{own.config_file}'\nhba_file = '{tmp_path}/data.gate/" in configuration
    assert "restart_after_crash=off" in door.arguments


def test_a_closing_is_opened_by_its_own_ticket(door: Door, own: OwnFiles) -> None:
    """A slow background of an earlier start would open a server that shows more."""
    first = door.close(own, ROLES)
    second = door.close(own, ROLES)
    assert not door.open(first) and door.ticket() == second
    assert door.open(second)
    assert door.close(own, ROLES) not in (first, second)
    assert door.open(), "by hand"


def test_a_start_that_need_not_be_closed_leaves_a_closed_door_closed(
    door: Door, own: OwnFiles
) -> None:
    """A standby that was a primary starts twice: its pg_control is a standby's the second time."""
    assert door.prepare(own, ROLES) is None and door.ticket() is None
    door.close(own, ROLES)
    ticket = door.prepare(own, ROLES)
    assert ticket is not None and ticket == door.ticket()


def test_a_door_that_cannot_be_made_names_the_remedy(tmp_path: Path, own: OwnFiles) -> None:
    with pytest.raises(Refused, match="--door"):
        Door(tmp_path / "missing" / "data.gate").close(own, ROLES)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a real pg_control."""
    (tmp_path / "data" / "global").mkdir(parents=True)
    return tmp_path / "data"


def ended_as(data: Path, state: State) -> None:
    """Write the pg_control of a server that ended in this state."""
    source = initialised_directory(("--wal-segsize=1",)) / "global" / "pg_control"
    content = bytearray(source.read_bytes())
    at = next(
        at for at in CRC_OFFSETS if struct.pack("<I", crc32c(content[:at])) == content[at : at + 4]
    )
    content[16:20] = struct.pack("<I", state)
    content[at : at + 4] = struct.pack("<I", crc32c(content[:at]))
    (data / "global" / "pg_control").write_bytes(content)


@pytest.mark.postgres
@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_a_standby_is_closed_if_it_was_a_primary_and_a_primary_always(
    data: Path, state: State
) -> None:
    ended_as(data, state)
    assert may_show_more_than_the_log(data), "without standby.signal it is a primary"
    (data / "standby.signal").touch()
    was_standby = state in (State.SHUT_DOWN_IN_RECOVERY, State.IN_ARCHIVE_RECOVERY)
    assert may_show_more_than_the_log(data) != was_standby
    (data / "backup_label").touch()
    assert not may_show_more_than_the_log(data), "a copy that has not run yet"


def test_a_pg_control_that_cannot_be_read_closes_the_start(data: Path) -> None:
    (data / "standby.signal").touch()
    assert may_show_more_than_the_log(data)
    (data / "global" / "pg_control").write_bytes(b"damaged")
    assert may_show_more_than_the_log(data)


@pytest.fixture
def program(data: Path, tmp_path: Path, own: OwnFiles) -> str:
    """A postgres that answers -C alone."""
    path = tmp_path / "postgres"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -C ] || exit 9\ncase $2 in data_directory) echo {data} ;;\n'
        f"config_file) echo {own.config_file} ;;\nhba_file) echo {own.hba_file} ;;\n"
        f"ident_file) echo {own.ident_file} ;;\n*) exit 8 ;;\nesac\n"
    )
    path.chmod(0o755)
    return str(path)


def test_a_start_gets_the_files_of_the_door(data: Path, program: str, door: Door) -> None:
    start = prepare((program, "-D", "x", "--port=1"), ROLES, None)
    assert start.ticket == door.ticket() is not None
    assert start.command == (program, "-D", "x", "--port=1", *door.arguments)


@pytest.mark.parametrize(
    "arguments", [("--single", "-D", "x"), ("-D", "x", "-C", "port"), ("--version",)]
)
def test_a_postgres_that_is_no_server_is_left_alone(
    program: str, door: Door, arguments: tuple[str, ...]
) -> None:
    assert prepare((program, *arguments), ROLES, None).command == (program, *arguments)
    assert door.ticket() is None


def test_the_door_of_a_server_that_runs_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, program: str, door: Door
) -> None:
    """A start without the door, left to postgres to refuse, was open if the server then ended."""
    monkeypatch.setattr(gated_start, "running_pid", lambda _: 1)
    with pytest.raises(Refused, match="runs already"):
        prepare((program, "-D", "x"), ROLES, None)
    assert door.ticket() is None


def test_a_start_whose_files_are_unknown_is_refused(program: str, own: OwnFiles) -> None:
    with pytest.raises(Refused, match="COMMAND has to be postgres itself"):
        prepare((f"{program}_", "-D", "x"), ROLES, None)
    with pytest.raises(Refused, match="ended with 1: mend its configuration"):
        prepare(("false", "-D", "x"), ROLES, None)
    Path(own.hba_file).write_text("include other.conf\n")
    with pytest.raises(Refused, match="includes another file"):
        prepare((program, "-D", "x"), ROLES, None)


class Server:
    """The answers of a server that waits: an LSN, None for a standby, or a refusal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Lsn | Refused | None) -> None:
        self.answers, self.reloads = list(answers), 0
        self.after: Callable[[], object] = lambda: None
        monkeypatch.setattr(gated_server, "POLL_S", 0)
        monkeypatch.setattr(gated_server, "wait_durable", self._wait_durable)
        monkeypatch.setattr(gated_server, "reload_rules", self._reload)

    async def _wait_durable(self, dsn: str, data: Path, say: object) -> Lsn | None:
        answer = self.answers.pop(0)
        self.after()
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def _reload(self, dsn: str) -> None:
        self.reloads += 1


def waited(
    door: Door, ticket: str, said: list[str], *, pid: int | None = None, log: Where | None = None
) -> Opened | None:
    guard = Guard("", Path("/none"), door, pid or os.getpid(), log)
    return asyncio.run(open_when_durable(guard, ticket, say=said.append))


def test_a_refusal_is_said_once_and_the_wait_goes_on(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    server = Server(monkeypatch, *[Refused("no names")] * 3, Lsn(7))
    said: list[str] = []
    opened = waited(door, door.close(own, ROLES), said)
    assert opened is not None and opened.lsn == 7 and door.ticket() is None
    assert said == ["closed: no names"] and server.reloads == 1


def test_a_refusal_that_goes_on_is_said_again_when_it_is_due(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    Server(monkeypatch, *[Refused("no names")] * 3, Lsn(7))
    monkeypatch.setattr(gated_server, "SAY_EVERY_S", 0)
    said: list[str] = []
    assert waited(door, door.close(own, ROLES), said) is not None
    assert said == ["closed: no names"] * 3


def test_a_server_that_does_not_answer_yet_is_said_only_when_it_is_due(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    answers = (Refused("no names"), NotConnected("up"), Refused("no names"))
    Server(monkeypatch, *answers, Lsn(7))
    said: list[str] = []
    assert waited(door, door.close(own, ROLES), said) is not None
    assert said == ["closed: no names"]
    Server(monkeypatch, *answers, Lsn(7))
    monkeypatch.setattr(gated_server, "SAY_EVERY_S", 0)
    assert waited(door, door.close(own, ROLES), said) is not None
    assert said[1:] == [
        "closed: no names",
        "closed: no SQL connection to the primary: up",
        "closed: no names",
    ]


def test_a_later_start_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    server = Server(monkeypatch, Lsn(7))
    ticket = door.close(own, ROLES)
    server.after = lambda: door.close(own, ROLES)
    assert waited(door, ticket, []) is None
    assert door.ticket() is not None and not server.reloads
    assert waited(door, ticket, []) is None, "it does not even ask"


def test_the_wait_ends_with_its_server(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    Server(monkeypatch)
    ended = subprocess.Popen(["true"])
    ticket = door.close(own, ROLES)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert waited(door, ticket, [], pid=ended.pid) is None, "a zombie"
    ended.wait()
    assert waited(door, ticket, [], pid=ended.pid) is None and door.ticket() == ticket


def replayed(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict, text: str | None = "0/7") -> None:
    """Let the standby replay up to `text`, and give the comparisons these results."""

    class Sql:
        async def fetchval(self, statement: str) -> str | None:
            return text

    @asynccontextmanager
    async def connected(dsn: str) -> AsyncIterator[Sql]:
        yield Sql()

    async def refuse_another(sql: Sql, data: Path) -> None:
        assert data == Path("/none")

    found = list(verdicts)

    def check(files: object, log: Where, *, replayed_lsn: Lsn) -> Checked:
        assert log == LOG and replayed_lsn == 7
        return Checked(found.pop(0))

    monkeypatch.setattr(gated_server, "connected", connected)
    monkeypatch.setattr(gated_server, "refuse_another", refuse_another)
    monkeypatch.setattr(gated_server, "check", check)


def test_a_standby_opens_when_the_log_has_all_that_it_has_replayed(
    monkeypatch: pytest.MonkeyPatch, door: Door, own: OwnFiles
) -> None:
    Server(monkeypatch, None, None, None)
    replayed(monkeypatch, Unknown("no quorum"), SameBranch(Lsn(5), 2), SameBranch(Lsn(7)))
    said: list[str] = []
    opened = waited(door, door.close(own, ROLES), said, log=LOG)
    assert opened is not None and opened.lsn == 7
    assert ["no quorum" in said[0], "goes on for 2 bytes" in said[1]] == [True, True]


@pytest.mark.parametrize(
    ("log", "text", "reason"), [(None, "0/7", "--safekeepers"), (LOG, None, "nothing yet")]
)
def test_a_standby_that_cannot_be_compared_stays_closed(
    monkeypatch: pytest.MonkeyPatch,
    door: Door,
    own: OwnFiles,
    log: Where | None,
    text: str | None,
    reason: str,
) -> None:
    Server(monkeypatch, None, Lsn(9))
    replayed(monkeypatch, text=text)
    said: list[str] = []
    opened = waited(door, door.close(own, ROLES), said, log=log)
    assert opened is not None and opened.lsn == 9, "its promotion opens it"
    assert reason in said[0]


def test_the_background_is_nobodys_child(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    before = own_children()
    in_background(lambda: os.write(writing, f"{os.getppid()} {os.getsid(0)}".encode()))
    os.close(writing)
    parent, session = map(int, os.read(reading, 100).split())
    os.close(reading)
    assert os.getpid() not in (parent, session)
    assert own_children() <= before, "no zombie is left"


def own_children() -> set[str]:
    """Return the processes of which this one is the parent, zombies too."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            if f"PPid:\t{os.getpid()}\n" in status.read_text():
                found.add(status.parent.name)
    return found


@pytest.mark.postgres
def test_a_server_tells_whether_its_door_is_closed() -> None:
    def gate() -> str | None:
        state: str | None = asyncio.run(asked_primary(server.dsn(), None, None))["gate"]
        return state

    with PostgresServer.create() as server:
        assert gate() is None, "a server of another start"
        for state in ("closed", "open"):
            server.configure({STATE_PARAMETER: state})
            server.reload()
            wait_until(lambda: gate() == state)  # noqa: B023


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--open", "--exec", "--", "postgres"), "choose one of"),
        (("--wait", "--", "postgres"), "--wait takes no COMMAND"),
        (("--open", "--", "postgres"), "--open takes no COMMAND"),
        (("--exec",), "name the command"),
    ],
)
def test_the_ways_of_the_command_exclude_each_other(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    assert run(["gate", "--dsn", "user=postgres", *words]) == 2
    assert text in capsys.readouterr().err


def test_a_wait_without_a_closed_server_says_so(
    capsys: pytest.CaptureFixture[str], data: Path, door: Door, own: OwnFiles
) -> None:
    words = ["gate", "--dsn", "user=postgres", "--wait", "-D", str(data)]
    assert run(words) == 0 and "open already" in capsys.readouterr().out
    door.close(own, ROLES)
    assert run(words) == 1 and "its start opens it" in capsys.readouterr().err
