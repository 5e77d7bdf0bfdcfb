"""`settle` and `logs close` fence a proposer that leads; on a terminal they ask first."""

from __future__ import annotations

import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from walkeeper_admin import status
from walkeeper_cli.commands import logs
from walkeeper_cli.commands.settle import command
from walkeeper_proposer import settling

LEADER = {"application_name": "walkeeper", "address": "h9:7"}


class Fenced(Exception):
    """The election would start here."""


@pytest.mark.parametrize(
    ("options", "leads", "is_terminal", "answer", "fences"),
    [
        ((), True, True, "n", False),
        ((), True, True, "y", True),
        (("--yes",), True, True, "", True),
        ((), False, True, "", True),
        ((), True, False, "", True),
    ],
)
def test_a_healthy_leader_is_fenced_only_after_a_yes(
    options: tuple[str, ...],
    leads: bool,
    is_terminal: bool,
    answer: str,
    fences: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gather(*_: object) -> dict[str, Any]:
        return {"cluster": {"heard_by_quorum": leads, "proposer": LEADER if leads else None}}

    async def settle(*_: object, **__: object) -> None:
        raise Fenced

    monkeypatch.setattr(status, "gather", gather)
    monkeypatch.setattr(settling, "settle", settle)
    runner = CliRunner()
    with runner.isolation(answer):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: is_terminal, raising=False)
        arguments = ["--safekeepers", "h1:1", *options]
        with pytest.raises(Fenced if fences else click.Abort):
            command.main(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("options", "closed_lsn", "is_terminal", "answer", "ends"),
    [
        ((), None, True, "n", click.Abort),
        ((), None, True, "y", Fenced),
        (("--yes",), None, False, "", Fenced),
        ((), None, False, "", click.UsageError),
        ((), "0/10", False, "", Fenced),
    ],
)
def test_a_log_is_closed_only_after_a_yes_and_a_closed_one_without(
    options: tuple[str, ...],
    closed_lsn: str | None,
    is_terminal: bool,
    answer: str,
    ends: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gather(*_: object) -> dict[str, Any]:
        known = {"heard_by_quorum": True, "proposer": LEADER, "closed_lsn": closed_lsn}
        return {"cluster": known}

    async def close(*_: object, **__: object) -> None:
        raise Fenced

    monkeypatch.setattr(status, "gather", gather)
    monkeypatch.setattr(settling, "close", close)
    runner = CliRunner()
    with runner.isolation(answer):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: is_terminal, raising=False)
        with pytest.raises(ends):
            arguments = ["--safekeepers", "h1:1", "main", *options]
            logs.close.main(arguments, standalone_mode=False)
