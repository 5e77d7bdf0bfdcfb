"""A machine whose systemd runs, in namespaces of its own: units start as they do for a user.

systemd sees a container with a read-only /sys and /proc/sys, so it changes no setting of this
kernel. The network is this machine's. Everything in it ends with its first process.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.packages.machine import Machine
from tests.support.waiting import wait_until

BOOT_S = 120.0
PACKAGES = ("systemd-sysv", "dbus")
# Units of a whole machine, which would look for devices and consoles.
MASKED = ("systemd-udevd.service", "systemd-sysctl.service", "systemd-logind.service",
          "console-getty.service", "getty.target")  # fmt: skip
# $1: the root. cgroup2 alone: systemd of Debian 13 takes no other, and no controller is needed.
BOOT = """set -e
cd "$1"
mount --bind "$1" "$1" && cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys && mount -o remount,ro,bind proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mkdir -p old && pivot_root . old && umount -l /old
exec env -i container=walkeeper PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init </dev/null
"""


class Booted:
    """The running system of a machine."""

    def __init__(self, machine: Machine, init: int, process: subprocess.Popen[bytes]) -> None:
        self.machine, self._process = machine, process
        self._enter = ("nsenter", "-t", str(init), "-m", "-p", "-u", "-i", "-C", "--")

    @classmethod
    @contextlib.contextmanager
    def create(cls, machine: Machine) -> Iterator[Booted]:
        """Boot a machine that is installed; end all its processes in the end."""
        (machine.root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
        for unit in MASKED:
            link = machine.root / "etc/systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        with _cgroup() as group, (machine.root.parent / "boot.log").open("wb") as log:
            namespaces = (
                "--pid",
                "--fork",
                "--kill-child",
                "--mount",
                "--uts",
                "--ipc",
                "--cgroup",
            )
            inside = (
                "unshare",
                *namespaces,
                "--propagation",
                "private",
                "bash",
                "-c",
                BOOT,
                "boot",
            )
            join = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
            words = ("bash", "-c", join, "join", str(group), *inside, str(machine.root))
            with subprocess.Popen(words, stdout=log, stderr=log) as process:
                try:
                    init = wait_until(lambda: _child_of(process.pid), BOOT_S)
                    booted = cls(machine, init, process)
                    wait_until(booted.is_up, BOOT_S)
                    yield booted
                finally:
                    process.send_signal(signal.SIGKILL)  # --kill-child ends the first process too

    def is_up(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False).strip()
        return state in ("running", "degraded")

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run((*self._enter, *command), capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {said[-3000:]}"
        return said

    def power_off(self) -> None:
        """Shut the machine down in order, and wait until it is off."""
        self.run("systemctl", "poweroff", check=False)  # the answer may be lost with the machine
        self._process.wait(BOOT_S)

    def main_pid(self, unit: str) -> str:
        return self.run("systemctl", "show", "-p", "MainPID", "--value", unit).strip()

    def status_of(self, unit: str) -> str:
        """Return /proc/PID/status of the unit's process."""
        return self.run("cat", f"/proc/{self.main_pid(unit)}/status")


def _child_of(pid: int) -> int:
    """Return the first child of `unshare`, which is the first process of the machine, or 0."""
    if Path(f"/proc/{pid}/comm").read_text().strip() != "unshare":
        return 0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


@contextlib.contextmanager
def _cgroup() -> Iterator[Path]:
    """Give a new group of cgroup2; remove it, with those that systemd made in it."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    root = next(Path(mount[1]) for mount in mounts if mount[2] == "cgroup2")
    group = root / f"walkeeper-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), BOOT_S)
        inner = sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts))
        for folder in (*inner, group):
            wait_until(partial(_removed, folder), BOOT_S)


def _removed(folder: Path) -> bool:
    """Remove a group; return False while a process of it still ends."""
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
