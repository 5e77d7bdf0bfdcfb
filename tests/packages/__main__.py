"""Install, upgrade, remove and purge the Debian packages in trees of Debian 12 and 13.

    python -m tests.packages --new dist/deb --before build/deb/before --trees build/deb
    python -m tests.packages … --only administrator       or rolling, or booted

`make deb-test` builds both versions first: that of this commit, and that of an earlier one.
Administrator: the packages of the version before get all that they depend on from Debian. Users,
modes and units are as they should be. Files that the administrator changed stay, over an upgrade,
a removal and a purge, and so does WAL. Rolling: four machines run three safekeepers and a proposer
of the version before. The machines are upgraded one after the other while a client commits.
Booted: systemd runs the units with all their bounds, and an upgrade restarts them under load.

Exit status: 0, 1 if a step failed, 77 if no tree of Debian can be made here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.packages.booted import PACKAGES as BOOT_PACKAGES
from tests.packages.booted import Booted
from tests.packages.machine import Machine
from tests.packages.suites import EXPOSURE_MAX, over_suites, say
from tests.support.cluster import Daemon
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.program_parser import program_parser
from walkeeper_lab.local.tcp_ports import free_port

SUITES = ("bookworm", "trixie")
COMMITS = 100
SAFEKEEPER, PROPOSER = "walkeeper-safekeeper@.service", "walkeeper-proposer.service"
OPTIONS = "etc/walkeeper/safekeeper.env"
# `ExecStart` of a template needs a file of that name.
VERIFY = ("systemd-analyze", "verify", "--man=no", "walkeeper-safekeeper@1.service", PROPOSER)


def packages(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.deb"))
    assert len(found) == 3, f"{folder} has {len(found)} packages; `make deb-test` builds them"
    return found


def with_other_comment(package: Path, folder: Path) -> Path:
    """Return the package with another text of its configuration file, as a release may have."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    with (tree / OPTIONS).open("a") as file:
        file.write("# A comment of the version before.\n")
    made = folder / package.name
    subprocess.run(["dpkg-deb", "-b", tree, made], check=True, stdout=subprocess.DEVNULL)
    return made


class Administrator:
    """One machine, from the first installation to the purge."""

    def __init__(self, machine: Machine, before: list[Path], new: list[Path]) -> None:
        self.machine, self.before, self.new = machine, before, new

    def run(self, folder: Path) -> None:
        machine = self.machine
        old = [with_other_comment(p, folder) if "safekeeper" in p.name else p for p in self.before]
        machine.install(old)
        self.is_installed()
        file = machine.root / OPTIONS
        edited = file.read_text().replace("127.0.0.1:5454", "127.0.0.1:5455")
        file.write_text(edited)
        own = file.with_name("safekeeper-1.env")
        own.write_text("WALKEEPER_WAL_KEEP_SIZE=2GB\n")
        wal = machine.root / "var/lib/walkeeper/wal"
        wal.write_text("WAL and votes")
        machine.upgrade(self.new)
        self.is_installed()
        assert file.read_text() == edited and own.exists(), "the upgrade touched a changed file"
        assert file.with_name("safekeeper.env.dpkg-dist").exists(), "the new text is nowhere"
        self.has_sound_units()
        say("    upgraded: the administrator's files stay")
        names = ("walkeeper-safekeeper", "walkeeper-proposer", "walkeeper")
        machine.run("dpkg", "--remove", *names)
        assert file.read_text() == edited and wal.exists() and own.exists()
        assert not (machine.root / "usr/lib/walkeeper").exists(), "files stay behind"
        said = machine.run("dpkg", "--purge", *names)
        assert "holds WAL and votes" in said, said
        assert not file.exists() and own.exists() and wal.exists()
        own.unlink()
        wal.unlink()
        say("    removed and purged: WAL stays, and files of the administrator's own")
        machine.install(self.new)
        self.is_installed()
        machine.run("dpkg", "--purge", *names)
        left = [p for p in ("etc/walkeeper", "var/lib/walkeeper") if (machine.root / p).exists()]
        assert not left, left

    def is_installed(self) -> None:
        machine = self.machine
        version = machine.run("walkeeper", "--version")
        assert version.startswith("walkeeper 0."), version
        assert "safekeeper" in machine.run("walkeeper", "--help")
        assert machine.run("stat", "-c", "%U %a", "/var/lib/walkeeper") == "walkeeper 700\n"
        assert machine.run("stat", "-c", "%U %a", f"/{OPTIONS}") == "root 640\n"
        assert "/var/lib/walkeeper" in machine.run("getent", "passwd", "walkeeper")
        machine.run("/usr/lib/walkeeper/bin/python3", "-c", "import obstore, zstandard")

    def has_sound_units(self) -> None:
        said = self.machine.run(*VERIFY)
        assert "walkeeper" not in said, said
        for name in (SAFEKEEPER, PROPOSER):
            unit = str(Path("/") / self.machine.unit(name).relative_to(self.machine.root))
            rating = self.machine.run(
                "systemd-analyze", "security", "--offline=true", "--no-pager", unit
            )
            (line,) = [line for line in rating.splitlines() if "Overall exposure" in line]
            exposure = float(line.split(":")[1].split()[0])
            assert exposure <= EXPOSURE_MAX, line
            say(f"    {name}: exposure {exposure}")


class Rolling:
    """Three safekeepers and a proposer, each on a machine of its own, and a client."""

    def __init__(self, machines: list[Machine], new: list[Path], folder: Path) -> None:
        self._machines, self._new, self._folder = machines, new, folder
        self._ports = [free_port() for _ in range(3)]
        self._addresses = ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def run(self, server: PostgresServer) -> None:
        *keepers, last = self._machines
        for number, machine in enumerate(keepers, 1):
            lines = [
                "WALKEEPER_DATA_DIR=/var/lib/walkeeper",
                f"WALKEEPER_LISTEN=127.0.0.1:{self._ports[number - 1]}",
                f"WALKEEPER_HTTP=127.0.0.1:{free_port()}",
            ]
            path = machine.root / f"etc/walkeeper/safekeeper-{number}.env"
            path.write_text("\n".join(lines) + "\n")
        where = ("--safekeepers", self._addresses, "--dsn", server.dsn())
        (last.root / "etc/walkeeper/proposer.env").write_text(
            f"WALKEEPER_SAFEKEEPERS={self._addresses}\nWALKEEPER_DSN={server.dsn()}\n"
        )
        daemons = [self._service(machine, n) for n, machine in enumerate(self._machines, 1)]
        try:
            for daemon in daemons[:3]:
                daemon.start()
            last.run("walkeeper", "create", *where)
            daemons[3].start()
            last.run("walkeeper", "attach", "--dsn", server.dsn())
            with Journal(server, writers=4) as journal:
                journal.wait_for_more(COMMITS)
                for number, machine in enumerate(self._machines, 1):
                    daemons[number - 1] = self._upgraded(
                        machine, number, daemons[number - 1], journal
                    )
                journal.wait_for_more(COMMITS)
            lost = journal.lost_in(server)
            assert not lost, f"lost: {sorted(lost)[:20]}"
            last.run("walkeeper", "status", "--check", *where)
            say(f"    {len(journal.entries)} acknowledged rows, all found; status --check is 0")
        finally:
            for daemon in daemons:
                daemon.kill()

    def _service(self, machine: Machine, number: int) -> Daemon:
        log = self._folder / f"daemon{number}.log"
        if number == 4:
            return machine.service(PROPOSER, log)
        return machine.service(SAFEKEEPER, log, instance=str(number))

    def _upgraded(self, machine: Machine, number: int, old: Daemon, journal: Journal) -> Daemon:
        """Upgrade the machine under the running daemon, and restart it, as the package does."""
        begun_s, begun = time.monotonic(), len(journal.entries)
        machine.upgrade(self._new)
        during = len(journal.entries) - begun
        assert old.terminate() == 0, old.output()
        daemon = self._service(machine, number)
        daemon.start()
        journal.wait_for_more(COMMITS)
        gap_s = journal.longest_gap_s(begun_s, time.monotonic())
        what = f"safekeeper {number}" if number < 4 else "proposer"
        say(f"    {what} upgraded: {during} commits meanwhile, longest gap {gap_s:.2f} s")
        assert during, f"{what}: no commit returned during its upgrade"
        return daemon


class UnderSystemd:
    """Three safekeepers and a proposer on one machine, as services of its systemd."""

    UNITS = (*(f"walkeeper-safekeeper@{n}" for n in (1, 2, 3)), "walkeeper-proposer")

    def __init__(self, machine: Machine, new: list[Path]) -> None:
        self._machine, self._new = machine, new

    def run(self, server: PostgresServer) -> None:
        machine, addresses = self._machine, []
        for number in (1, 2, 3):
            addresses.append(f"127.0.0.1:{free_port()}")
            (machine.root / f"etc/walkeeper/safekeeper-{number}.env").write_text(
                f"WALKEEPER_DATA_DIR=/var/lib/walkeeper/{number}\n"
                f"WALKEEPER_LISTEN={addresses[-1]}\nWALKEEPER_HTTP=127.0.0.1:{free_port()}\n"
            )
        keepers = ",".join(addresses)
        (machine.root / "etc/walkeeper/proposer.env").write_text(
            f"WALKEEPER_SAFEKEEPERS={keepers}\nWALKEEPER_DSN={server.dsn()}\n"
        )
        with Booted.create(machine) as booted:
            booted.run("systemctl", "start", *self.UNITS[:3])
            booted.run("walkeeper", "create", "--safekeepers", keepers, "--dsn", server.dsn())
            booted.run("systemctl", "start", self.UNITS[3])
            booted.run("walkeeper", "attach", "--dsn", server.dsn())
            with Journal(server, writers=4) as journal:
                journal.wait_for_more(COMMITS)
                self._upgrade(booted, journal)
            lost = journal.lost_in(server)
            assert not lost, f"lost: {sorted(lost)[:20]}"
            booted.run("systemctl", "stop", *self.UNITS)
            for unit in self.UNITS:
                result = booted.run("systemctl", "show", "-p", "Result", "--value", unit)
                assert result == "success\n", f"{unit}: {result}"
            say(f"    {len(journal.entries)} acknowledged rows, all found; every unit ended with 0")

    def _upgrade(self, booted: Booted, journal: Journal) -> None:
        before = {unit: booted.main_pid(unit) for unit in self.UNITS}
        inside = self._machine.copied(self._new)
        booted.run("dpkg", "--force-confdef", "--force-confold", "-i", *inside)
        for unit in self.UNITS:
            now = booted.main_pid(unit)
            said = booted.run("systemctl", "status", "--no-pager", "--full", unit, check=False)
            assert now not in ("0", before[unit]), f"{unit} was not restarted: {said}"
            lines = booted.status_of(unit).splitlines()
            found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert found["Seccomp"] == "2" and found["NoNewPrivs"] == "1", unit
            assert int(found["CapBnd"], 16) == 0, unit
        journal.wait_for_more(COMMITS)
        say("    four units restarted: no capability, system calls filtered, commits go on")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="walkeeper_packages_") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def play(suite: str, options: argparse.Namespace) -> None:
    before, new = packages(options.before / suite), packages(options.new / suite)
    base = options.trees / suite / "base"
    if options.only in (None, "administrator"):
        say(f"{suite}: one administrator, one machine")
        with scratch() as folder, Machine.create(folder / "m", base) as machine:
            Administrator(machine, before, new).run(folder)
    if options.only in (None, "rolling"):
        say(f"{suite}: an upgrade of four machines, one after the other, under load")
        with scratch() as folder, contextlib.ExitStack() as stack:
            with Machine.create(folder / "first", base) as first:
                first.install(before)
            machines = [
                stack.enter_context(Machine.create(folder / f"m{n}", first.upper, base))
                for n in range(4)
            ]
            with PostgresServer.create() as server:
                Rolling(machines, new, folder).run(server)
    if options.only in (None, "booted"):
        say(f"{suite}: services of systemd, upgraded under load")
        with scratch() as folder, Machine.create(folder / "m", base) as machine:
            machine.install(before)
            machine.run("apt-get", "install", "-y", "--no-install-recommends", *BOOT_PACKAGES)
            with PostgresServer.create() as server:
                UnderSystemd(machine, new).run(server)


def main(arguments: Sequence[str]) -> int:
    parser = program_parser("tests.packages", __doc__)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--only", choices=("administrator", "rolling", "booted"))
    return over_suites(parser.parse_args(arguments), play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
