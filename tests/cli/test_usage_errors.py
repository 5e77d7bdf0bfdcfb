"""A usage error names the missing part, and a closed port is a reason in words."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_cli.program import run
from walkeeper_common.errors import Unreachable
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.wire.requests import StatusRequest
from walkeeper_lab.local.tcp_ports import free_port

THREE = "h1:1,h2:2,h3:3"
VARIABLES = ("DSN", "SAFEKEEPERS", "SLOT", "USERS", "CONFIG", "CLUSTER")


class Complaint:
    """Runs a command that must end with a usage error, and returns its text."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        assert run(list(arguments)) == 2
        return self._capsys.readouterr().err


@pytest.fixture
def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complaint:
    for name in VARIABLES:
        monkeypatch.delenv(f"WALKEEPER_{name}", raising=False)
    return Complaint(capsys)


@pytest.mark.parametrize("group", ["logs", "slots", "user", "members"])
def test_a_group_without_a_command_lists(group: str, complaint: Complaint) -> None:
    """The name of a command is no guess: a misspelt one is an error, and --help is the group's."""
    wanted = "--users" if group == "user" else "--safekeepers"
    assert f"Missing option '{wanted}'," in complaint(group)
    assert "is not HOST:PORT" in complaint("slots", "--safekeepers", "nowhere")
    assert "No such command 'old'" in complaint(group, "old")


def test_a_missing_option_names_its_variable_and_a_wrong_list_the_comma(
    complaint: Complaint,
) -> None:
    said = complaint("status")
    assert "Missing option '--safekeepers', or WALKEEPER_SAFEKEEPERS in the environment" in said
    for between in (";", " ", "; "):
        said = complaint("status", "--safekeepers", f"h1:1{between}h2:2")
        assert "separate the safekeepers with commas" in said


def test_a_closed_port_is_no_number_of_an_error() -> None:
    """`[Errno 111] Connect call failed ('127.0.0.1', 1)` was the reason."""
    with pytest.raises(Unreachable) as refused:
        asyncio.run(ask(("127.0.0.1", free_port()), StatusRequest("main"), LIMIT_S))
    assert str(refused.value).endswith(" is unreachable: Connection refused")
    with pytest.raises(Unreachable, match="is unreachable: Connection refused"):
        Safekeeper(("127.0.0.1", free_port()), LIMIT_S)


def test_an_option_that_stands_where_a_value_belongs_is_named(complaint: Complaint) -> None:
    """The next option was the value, and the error was that this next one is missing."""
    said = complaint("attach", "--grants", "--dsn", "host=db1")
    assert "'--grants': a value is missing before --dsn" in said
    said = complaint("create", "--safekeepers", THREE, "--slot", "--dsn", "host=db1")
    assert "'--slot': a value is missing before --dsn" in said
