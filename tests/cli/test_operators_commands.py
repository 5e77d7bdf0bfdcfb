"""The operator's commands run beside the caller's other tasks, and end with their limit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from walkeeper_admin.closed_start import GateSettings, start_closed
from walkeeper_admin.operators_commands import run_command, run_in_shell
from walkeeper_admin.switchover import SwitchoverSettings, switch_over
from walkeeper_common.errors import Refused

LONG_S = 20.0
NO_SERVER = "host=/nonexistent user=nobody connect_timeout=1"


def test_the_exit_code_and_all_output_are_returned() -> None:
    async def both() -> tuple[tuple[int, str], int]:
        shell = await run_in_shell("echo one; echo two >&2; read x; exit 3", LONG_S)
        return shell, await run_command([sys.executable, "-c", "raise SystemExit(4)"], LONG_S)

    assert asyncio.run(both()) == ((3, "one\ntwo\n"), 4)


def test_other_tasks_run_while_a_command_does(tmp_path: Path) -> None:
    """The command ends when a task of the same loop has written a file."""
    go_on = tmp_path / "go_on"

    async def both() -> tuple[int, str]:
        waiting = f"until [ -e {go_on} ]; do sleep 0.01; done; echo seen"
        async with asyncio.TaskGroup() as group:
            command = group.create_task(run_in_shell(waiting, LONG_S))
            await asyncio.sleep(0)
            group.create_task(asyncio.to_thread(go_on.touch))
        return command.result()

    assert asyncio.run(both()) == (0, "seen\n")


def test_a_late_command_is_killed_though_its_child_keeps_the_pipe_open(tmp_path: Path) -> None:
    child = tmp_path / "child"
    begun_s = time.monotonic()
    text = f"sleep {LONG_S:g} & echo $! > {child}; wait"
    with pytest.raises(TimeoutError, match="no end within 2 s"):
        asyncio.run(run_in_shell(text, 2.0))  # enough for a shell to start
    assert time.monotonic() - begun_s < LONG_S / 2
    _kill(int(child.read_text()))


def _kill(pid: int) -> None:
    """Kill the process; raise ProcessLookupError if it is not there."""
    os.kill(pid, signal.SIGKILL)


def test_a_command_is_killed_if_its_caller_is_cancelled(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def cancelled() -> None:
        words = [
            "sh",
            "-c",
            f"echo $$ > {begun}.new; mv {begun}.new {begun}; exec sleep {LONG_S:g}",
        ]
        command = asyncio.create_task(run_command(words, LONG_S))
        await asyncio.to_thread(wait_until, begun.exists)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command

    asyncio.run(cancelled())  # returns when the thread has seen the end
    with pytest.raises(ProcessLookupError):
        _kill(int(begun.read_text()))


def test_a_caller_with_a_loop_of_its_own_can_switch_over_and_start_a_server(tmp_path: Path) -> None:
    async def in_a_loop() -> list[str]:
        switchover = SwitchoverSettings((), NO_SERVER, NO_SERVER, "true")
        gate = GateSettings(tmp_path, NO_SERVER, ("postgres",), ("true",))
        said = []
        for each in (switch_over(switchover, say=print), start_closed(gate, say=print)):
            with pytest.raises(Refused) as refused:
                await each
            said.append(str(refused.value))
        return said

    connection, rules = asyncio.run(in_a_loop())
    assert "/nonexistent" in connection and "pg_hba.conf" in rules
