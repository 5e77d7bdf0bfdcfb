"""A machine with Debian for the play of the packages: a tree of debootstrap under an overlay.

The files that a machine writes go into a folder of its own, so the tree stays as it is. Processes
share the network of this machine. No systemd runs in it, and `service` starts a daemon as its unit
says. A machine of booted.py has one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.cluster import Daemon

COMMAND_S = 600.0
UNITS = ("usr/lib/systemd/system", "lib/systemd/system")
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {
    "PATH": PATH.removeprefix("PATH="),
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


class Machine:
    """One machine, as long as its overlay is mounted."""

    def __init__(self, root: Path, upper: Path) -> None:
        self.root, self.upper = root, upper

    @classmethod
    @contextlib.contextmanager
    def create(cls, folder: Path, *lower: Path) -> Iterator[Machine]:
        """Give a machine over these trees, the uppermost first."""
        root, upper, work = (folder / name for name in ("root", "upper", "work"))
        for made in (root, upper, work):
            made.mkdir(parents=True)
        layers = ":".join(map(str, lower))
        options = f"lowerdir={layers},upperdir={upper},workdir={work}"
        _run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)])
        try:
            _run(["mount", "-t", "proc", "proc", str(root / "proc")])
            try:
                yield cls(root, upper)
            finally:
                _run(["umount", str(root / "proc")])
        finally:
            _run(["umount", str(root)])

    def run(self, *command: str, check: bool = True) -> str:
        """Return what a command says inside, on stdout and stderr."""
        done = _run(["chroot", str(self.root), *command], check=check)
        return done.stdout + done.stderr

    def install(self, packages: Sequence[Path]) -> str:
        """Install package files by apt, which gets from Debian what they depend on."""
        inside = self.copied(packages)
        return self.run("apt-get", "install", "-y", "--no-install-recommends", *inside)

    def upgrade(self, packages: Sequence[Path]) -> str:
        """Unpack and configure them; a changed configuration file stays the administrator's."""
        return self.run("dpkg", "--force-confdef", "--force-confold", "-i", *self.copied(packages))

    def copied(self, packages: Sequence[Path]) -> list[str]:
        """Copy package files in, and return their paths. systemd of Debian 13 mounts over /tmp."""
        for package in packages:
            (self.root / "srv" / package.name).write_bytes(package.read_bytes())
        return [f"/srv/{package.name}" for package in packages]

    def unit(self, name: str) -> Path:
        """Return the file of an installed unit."""
        return next(path for place in UNITS if (path := self.root / place / name).is_file())

    def service(self, unit: str, log: Path, *, instance: str = "") -> Daemon:
        """Return the daemon of a unit: its command, its user and its environment files."""
        lines = self.unit(unit).read_text().replace("%i", instance).splitlines()
        settings = [tuple(line.split("=", 1)) for line in lines if "=" in line and line[0] != "#"]
        (user,) = [value for name, value in settings if name == "User"]
        (command,) = [value for name, value in settings if name == "ExecStart"]
        environment = dict[str, str]()
        for name, value in settings:
            if name == "EnvironmentFile":
                environment |= self._variables(value)
        words = [f"{name}={value}" for name, value in environment.items()]
        inside = ("chroot", f"--userspec={user}:{user}", str(self.root), "env", "-i", PATH)
        daemon = Daemon(f"{unit} {instance}", (), log, prefix=(*inside, *words))
        daemon.command = shlex.split(command)
        return daemon

    def _variables(self, file: str) -> dict[str, str]:
        path = self.root / file.lstrip("-/")
        if file.startswith("-") and not path.exists():
            return {}
        lines = path.read_text().splitlines()
        pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
        return {name: value for name, _, value in pairs}


def _run(command: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env={**ENVIRONMENT, "TZ": os.environ.get("TZ", "UTC")}, capture_output=True,
        text=True, timeout=COMMAND_S,
    )  # fmt: skip
    said = f"{shlex.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.returncode == 0 or not check, said
    return done
