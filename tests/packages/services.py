"""A machine whose systemd runs all of walkeeper and PostgreSQL, set up as the documents say.

    python -m tests.packages.services --new dist/deb --trees build/deb [--suites bookworm]

`make systemd-test` builds the packages first. apt installs them and PostgreSQL, and systemd boots
in namespaces of its own (booted.py). Then each unit is verified and rated. Daemons are killed,
reloaded, filled up, restarted and stopped. The machine restarts, once in order and once without a
warning. The check's unit has to tell each state, and no acknowledged row may be missing.

Exit status: 0, 1 if a step failed, 77 if no tree of Debian can be made here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.packages.booted import PACKAGES as BOOT_PACKAGES
from tests.packages.booted import Booted
from tests.packages.machine import Machine
from tests.packages.suites import EXPOSURE_MAX, over_suites, say
from tests.support.program_parser import program_parser
from tests.support.waiting import wait_until
from walkeeper_lab.local.tcp_ports import free_port

KEEPERS = tuple(f"walkeeper-safekeeper@{n}.service" for n in (1, 2, 3))
PROPOSER, CHECK, TIMER = (
    "walkeeper-proposer.service",
    "walkeeper-check.service",
    "walkeeper-check.timer",
)
DAEMONS = (*KEEPERS, PROPOSER)
STOP_S_MAX = 20.0
FULL_BYTES = "56m"  # room for the reserve and for two segments of 16 MB
LIMIT_S = 120.0
GRADES = ("OK ", "WARNING ", "FAILED ")
# The play has no archive, and other work shares its disk.
TOLERATED = ("archive", "fdatasync")
PASSWORD = "a password of the play"


class Play:
    """One installation, from the files of an administrator to its last restart."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ports = [free_port() for _ in range(3)]
        self._port = free_port()
        self._rows = 0

    def run(self) -> None:
        self._configure()
        with Booted.create(self._machine) as booted:
            self._set_up(booted)
            self._is_verified(booted)
            self._is_told_by_the_check(booted)
            self._is_killed(booted)
            self._is_reloaded(booted)
            self._is_filled(booted)
            self._is_stopped(booted)
            booted.run("systemctl", "enable", "postgresql", *DAEMONS, TIMER)
            booted.power_off()
        say("    the machine was shut down")
        with Booted.create(self._machine) as booted:
            self._is_back(booted)
            say("    it is back after a shutdown: all units run, and the check is OK")
        with Booted.create(self._machine) as booted:
            self._is_back(booted)
            say("    it is back after a loss of power")

    def _configure(self) -> None:
        """Write the administrator's files, as docs/packages.md and docs/operations.md have them."""
        folder = self._machine.root / "etc/walkeeper"
        for number, port in enumerate(self._ports, 1):
            (folder / f"safekeeper-{number}.env").write_text(
                f"WALKEEPER_DATA_DIR=/var/lib/walkeeper/{number}\n"
                f"WALKEEPER_LISTEN=127.0.0.1:{port}\nWALKEEPER_HTTP=127.0.0.1:{free_port()}\n"
                "WALKEEPER_WAL_KEEP_SIZE=32MB\n"
            )
        for name in ("proposer", "check"):
            file = folder / f"{name}.env"
            text = file.read_text().replace("127.0.0.1:5454", self._addresses)
            file.write_text(text.replace("127.0.0.1:7677", f"127.0.0.1:{free_port()}"))
        (folder / "pg_service.conf").write_text(
            f"[prod]\nhost=127.0.0.1\nport={self._port}\nuser=walkeeper\ndbname=postgres\n"
        )
        (folder / "pgpass").write_text(f"*:*:*:walkeeper:{PASSWORD}\n")
        self._machine.run("chown", "walkeeper:", "/etc/walkeeper/pgpass")
        self._machine.run("chmod", "600", "/etc/walkeeper/pgpass")
        (settings,) = (self._machine.root / "etc/postgresql").glob("*/main/postgresql.conf")
        with settings.open("a") as file_of_server:
            file_of_server.write(f"port = {self._port}\n")

    @property
    def _addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def _set_up(self, booted: Booted) -> None:
        booted.run("systemctl", "start", "postgresql")
        grants = self._walkeeper(booted, "attach", "--dsn", self._superuser, "--grants walkeeper")
        self._sql(booted, grants)
        self._sql(booted, f"ALTER ROLE walkeeper PASSWORD '{PASSWORD}'")
        self._sql(booted, "CREATE TABLE kept (row int)")
        # A proposer waits for its safekeepers: it is not ready, and it does not fail.
        booted.run("systemctl", "start", "--no-block", PROPOSER)
        wait_until(lambda: "cannot reach" in self._journal(booted, PROPOSER), LIMIT_S)
        assert self._state(booted, PROPOSER) == "activating"
        booted.run("systemctl", "start", *KEEPERS)
        self._walkeeper(booted, "create", "--safekeepers", self._addresses, "--dsn service=prod")
        wait_until(lambda: self._state(booted, PROPOSER) == "active", LIMIT_S)
        self._walkeeper(booted, "attach", "--dsn service=prod")
        self._commits(booted)
        say("    three safekeepers and a proposer run, and commits wait for them")

    def _is_verified(self, booted: Booted) -> None:
        units = (KEEPERS[0], PROPOSER, CHECK, TIMER)
        said = booted.run("systemd-analyze", "verify", "--man=no", *units)
        assert "walkeeper" not in said, said
        for unit in units[:3]:
            rating = booted.run("systemd-analyze", "security", "--no-pager", unit, check=False)
            (line,) = [line for line in rating.splitlines() if "Overall exposure" in line]
            exposure = float(line.split(":")[1].split()[0])
            say(f"    {unit}: exposure {exposure}")
            assert exposure <= EXPOSURE_MAX, line

    def _is_told_by_the_check(self, booted: Booted) -> None:
        self._is_checked(booted)
        booted.run("systemctl", "start", TIMER)
        assert "walkeeper-check" in booted.run("systemctl", "list-timers", "--all", TIMER)
        booted.run("systemctl", "stop", KEEPERS[2])
        booted.run("systemctl", "start", CHECK, check=False)
        assert booted.run("systemctl", "is-failed", CHECK) == "failed\n"
        told = self._journal(booted, CHECK)
        assert "safekeeper 3" in told, told
        booted.run("systemctl", "start", KEEPERS[2])
        self._is_checked(booted)
        say("    the check's unit fails while a safekeeper is stopped, and names it")

    def _is_killed(self, booted: Booted) -> None:
        for unit in DAEMONS:
            before = booted.main_pid(unit)
            booted.run("systemctl", "kill", "--signal=KILL", unit)
            wait_until(partial(self._is_active_since, booted, unit, before), LIMIT_S)
            self._commits(booted)
        say("    each daemon comes back by itself after SIGKILL")

    def _is_reloaded(self, booted: Booted) -> None:
        for unit in DAEMONS:
            before = booted.main_pid(unit)
            booted.run("systemctl", "reload", unit)
            wait_until(partial(self._has_said, booted, unit, "received SIGHUP"), LIMIT_S)
            assert booted.main_pid(unit) == before, "a reload is no restart"
        say("    each daemon reloads")

    def _is_filled(self, booted: Booted) -> None:
        """Give safekeeper 3 a small disk, fill it, and make room."""
        unit, folder = KEEPERS[2], "/var/lib/walkeeper/3"
        booted.run("systemctl", "stop", unit)
        booted.run("cp", "-a", folder, "/srv/three")
        booted.run("mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", folder)
        booted.run("sh", "-c", f"cp -a /srv/three/. {folder} && chown -R walkeeper: {folder}")
        booted.run("systemctl", "start", unit)
        for _ in range(6):
            self._commits(booted)
            self._sql(booted, "SELECT pg_switch_wal()")
        wait_until(lambda: "space" in self._journal(booted, unit, "warning"), LIMIT_S)
        assert self._state(booted, unit) == "active", "a full disk is no reason to end"
        booted.run("systemctl", "start", CHECK, check=False)
        told = self._journal(booted, CHECK)
        assert "space" in told, told
        booted.run("mount", "-o", "remount,size=2g", folder)
        self._is_checked(booted)
        booted.run("systemctl", "stop", unit)
        booted.run("sh", "-c", f"rm -r /srv/three && cp -a {folder} /srv/three && umount {folder}")
        booted.run("sh", "-c", f"rm -r {folder} && cp -a /srv/three {folder}")
        booted.run("systemctl", "start", unit)
        self._is_checked(booted)
        say("    a full disk is a warning in the journal and of the check, and space ends it")

    def _is_stopped(self, booted: Booted) -> None:
        for unit in DAEMONS:
            begun_s = time.monotonic()
            booted.run("systemctl", "restart" if unit == PROPOSER else "stop", unit)
            took_s = time.monotonic() - begun_s
            assert took_s < STOP_S_MAX, f"{unit} took {took_s:.1f} s to stop"
            if unit != PROPOSER:
                result = booted.run("systemctl", "show", "-p", "Result", "--value", unit)
                assert result == "success\n", f"{unit}: {result}"
                booted.run("systemctl", "start", unit)
            self._commits(booted)
        say("    each daemon stops in time")

    def _is_back(self, booted: Booted) -> None:
        for unit in DAEMONS:
            wait_until(partial(self._is_active_since, booted, unit, "0"), LIMIT_S)
        self._commits(booted)
        self._is_checked(booted)
        assert self._state(booted, TIMER) == "active"
        found = int(self._sql(booted, "SELECT count(*) FROM kept"))
        assert found >= self._rows, f"{self._rows - found} acknowledged rows are missing"

    def _is_checked(self, booted: Booted) -> None:
        """Wait until the check has no fault but those of this machine."""
        try:
            wait_until(partial(self._has_no_fault, booted), LIMIT_S)
        except AssertionError as error:
            raise AssertionError(self._journal(booted, CHECK)) from error

    def _has_no_fault(self, booted: Booted) -> bool:
        booted.run("systemctl", "start", CHECK, check=False)
        lines = self._journal(booted, CHECK).splitlines()
        graded = [line.split()[:2] for line in lines if line.startswith(GRADES)]
        return bool(graded) and not [
            name for grade, name in graded if grade != "OK" and name not in TOLERATED
        ]

    def _commits(self, booted: Booted) -> None:
        self._sql(booted, "INSERT INTO kept SELECT generate_series(1, 10)")
        self._rows += 10

    def _is_active_since(self, booted: Booted, unit: str, before: str) -> bool:
        return self._state(booted, unit) == "active" and booted.main_pid(unit) != before

    @property
    def _superuser(self) -> str:
        return f"'host=/run/postgresql port={self._port} dbname=postgres'"

    def _walkeeper(self, booted: Booted, *words: str) -> str:
        """Run a command as the user postgres, with the files of libpq."""
        files = "PGSERVICEFILE=/etc/walkeeper/pg_service.conf"
        line = f"{files} PGPASSWORD='{PASSWORD}' walkeeper {' '.join(words)}"
        return booted.run("su", "postgres", "-c", line)

    def _sql(self, booted: Booted, text: str) -> str:
        file = self._machine.root / "srv/statement.sql"
        file.write_text(text)
        line = f"psql -XAtq -v ON_ERROR_STOP=1 -p {self._port} -f /srv/statement.sql"
        return booted.run("su", "postgres", "-c", line)

    def _state(self, booted: Booted, unit: str) -> str:
        return booted.run("systemctl", "is-active", unit, check=False).strip()

    def _has_said(self, booted: Booted, unit: str, text: str) -> bool:
        return text in self._journal(booted, unit)

    def _journal(self, booted: Booted, unit: str, priority: str = "debug") -> str:
        """Return the lines of the unit's last start."""
        invocation = booted.run("systemctl", "show", "-p", "InvocationID", "--value", unit).strip()
        which = f"_SYSTEMD_INVOCATION_ID={invocation}"
        return booted.run("journalctl", "--no-pager", "-o", "cat", "-p", priority, which)


def play(suite: str, options: argparse.Namespace) -> None:
    packages = sorted((options.new / suite).glob("*.deb"))
    assert len(packages) == 3, f"{options.new / suite} has no packages; run `make systemd-test`"
    say(f"{suite}: an installation under systemd")
    with tempfile.TemporaryDirectory(prefix="walkeeper_services_") as name:
        os.chmod(name, 0o755)
        with Machine.create(Path(name) / "m", options.trees / suite / "base") as machine:
            machine.run("apt-get", "update", "-qq")
            machine.install(packages)
            more = (*BOOT_PACKAGES, "postgresql")
            machine.run("apt-get", "install", "-y", "--no-install-recommends", *more)
            Play(machine).run()


def main(arguments: Sequence[str]) -> int:
    parser = program_parser("tests.packages.services", __doc__)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--suites", default="bookworm")
    return over_suites(parser.parse_args(arguments), play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
