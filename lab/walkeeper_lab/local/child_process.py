"""A child process: its start, its `ready` line and its stop. It ends with its parent. A shell.

    child = ChildProcess("safekeeper 1", walkeeper_command("safekeeper", …), log=path)
    await child.start(timeout_s=30)      its `ready: …` line, or Refused with its last line
    code = await child.ended()

Each child has a process group of its own. So Ctrl-C reaches only the parent, which chooses the
order of stopping. On Linux the kernel also ends the child when the parent is killed
(PR_SET_PDEATHSIG). So the ports are free when the same command runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pwd
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from walkeeper_common.errors import Refused

READY = b"ready: "
PR_SET_PDEATHSIG = 1
STOP_S = 10.0
LAST_WORDS_BYTES = 4096
LOG_PREFIX = re.compile(
    r"^\S+ \S+ UTC \[\d+\] \w+:\s+"
)  # as in walkeeper_common.shell.log_lines.operator_log


def walkeeper_command(*arguments: str) -> tuple[str, ...]:
    """Return the command of this installation's `walkeeper`, however this process was started."""
    return (sys.executable, "-P", "-m", "walkeeper_cli", *arguments)


class ChildProcess:
    """A child that may be started again after its end; its stderr is appended to `log`.

    It runs as `user`, which only root can choose. It gets `death_signal` when its parent is killed.
    `stop` sends the same signal first.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        death_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name, self.command, self.log = name, tuple(command), log
        # The parent's options are not the child's, although both may come from the environment.
        ours = {name for name in os.environ if name.startswith("WALKEEPER_")}
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        self._environment = {**inherited, **(environment or {})}
        self._user, self._cwd, self._death_signal = user, cwd, death_signal
        self._process: asyncio.subprocess.Process | None = None
        self._log_start_bytes = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def memory_mb(self) -> tuple[float, float]:
        """Return its resident memory now, and the most since its start (VmRSS, VmHWM of Linux)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        known = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        now_kb, most_kb = (int(known[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        return now_kb / 1024, most_kb / 1024

    def cpu_s(self) -> float:
        """Return the processor time of all its threads, also of those that ended."""
        return time.clock_gettime(_processor_clock_of(self.pid))

    def run_on(self, processors: Set[int]) -> None:
        """Keep its threads, and what it starts later, on these processors."""
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            os.sched_setaffinity(int(thread), processors)

    async def start(self, timeout_s: float) -> str:
        """Launch the child, wait for its `ready: ` line, and return the rest of that line.

        Stop the child and raise Refused if it is not ready in time.
        """
        await self.launch()
        try:
            async with asyncio.timeout(timeout_s):
                return await self.ready()
        except TimeoutError:
            await self.stop()
            raise Refused(
                f"{self.name} was not ready within {timeout_s:g} s: {self.last_words()}"
            ) from None

    async def launch(self) -> None:
        """Start the child without waiting; it may not be ready, and it may end at once."""
        assert not self.is_running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                cwd=self._cwd,
                process_group=0,
                preexec_fn=die_with_us(self._death_signal),
                **as_user(self._user),
            )

    async def ready(self) -> str:
        """Return the text after `ready: `; raise Refused if the child ends before that line."""
        assert self._process is not None and self._process.stdout is not None, self.name
        while line := await self._process.stdout.readline():
            if line.startswith(READY):
                return line[len(READY) :].decode(errors="replace").strip()
        code = await self._process.wait()
        raise Refused(f"{self.name} {shown_exit(code)}: {self.last_words()}")

    async def ended(self) -> int:
        """Wait for the child's end and return its exit code, negative for a signal."""
        assert self._process is not None, f"{self.name} was never started"
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child; do nothing if it has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Ask the child to end, and kill it if it does not; do nothing if it does not run."""
        self.send(self._death_signal)
        try:
            async with asyncio.timeout(timeout_s if self.is_running else 0.1):
                if self._process is not None:
                    await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL to the child and its process group, and wait until the child is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def last_words(self) -> str:
        """Return the last line that this run wrote to its log, or the reason why there is none."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start_bytes, end - LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return str(error)
        words = [line.strip() for line in lines if line.strip()]
        return LOG_PREFIX.sub("", words[-1]) if words else f"it wrote nothing to {self.log}"


def _processor_clock_of(pid: int) -> int:
    """Return the identifier of a process's clock, as clock_getcpuclockid of Linux makes it."""
    return ~pid << 3 | 2


def shown_exit(code: int) -> str:
    """Return the end in words, such as `ended with code 1` or `was killed by SIGKILL`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def as_user(user: str | None) -> dict[str, Any]:
    """Return subprocess's arguments for another user, or none of them if `user` is None."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def die_with_us(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """Return a function that makes the kernel send `number` to the child when its parent ends.

    The child must call it after the change of its user, which would clear the setting. Return None
    on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def ask_the_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # killed between the fork and the line above
            os._exit(1)

    return ask_the_kernel
