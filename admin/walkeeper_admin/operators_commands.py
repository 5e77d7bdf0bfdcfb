"""The operator's commands that stop and start a server. A shell.

    code, output = await run_in_shell(text, timeout_s)    its output is captured
    code = await run_command(words, timeout_s)            its output goes where the caller's goes

Contract: after `timeout_s` kill the command and raise TimeoutError. A cancelled caller kills it as
well. The processes that a command began live on, since a server may be one of them. Such a
process may keep the pipe open. asyncio's `Process.wait` would wait for its end (Python 3.11), so a
worker thread waits.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence


async def run_in_shell(text: str, timeout_s: float) -> tuple[int, str]:
    """Run a command of the shell; return its exit code and its output."""
    process = _begin(text, subprocess.PIPE)
    output = await _ended(process, timeout_s)
    return process.returncode, output.decode(errors="replace")


async def run_command(words: Sequence[str], timeout_s: float) -> int:
    """Run a command; return its exit code. Raise OSError if it cannot be started."""
    process = _begin(words, None)
    await _ended(process, timeout_s)
    return process.returncode


def _begin(command: str | Sequence[str], output: int | None) -> subprocess.Popen[bytes]:
    """Start a command, in the shell if it is a text. It blocks for the fork alone."""
    return subprocess.Popen(
        command,
        shell=isinstance(command, str),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    )


async def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Wait for the end of the command and return its output; raise TimeoutError after the limit."""
    try:
        output, _ = await asyncio.to_thread(process.communicate, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        await asyncio.to_thread(process.wait)
        if process.stdout is not None:
            process.stdout.close()
        raise TimeoutError(f"no end within {timeout_s:g} s") from error
    except asyncio.CancelledError:
        process.kill()  # the thread sees the end
        raise
    return output or b""
