"""Incidents of an installation: proposers, members, versions, clocks, certificates, seals."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.proof.drill.incident import MEMBER_AWAY, NO_PROPOSER, Commits, Expected, Incident
from tests.support.cluster import Daemon, walkeeper
from tests.support.folders import ROOT
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.tls_files import NOW, TlsFiles
from walkeeper_admin.create import CreateSettings, create
from walkeeper_common.access.identity import Role
from walkeeper_lab.local.tcp_ports import free_port

VICTIM = 3
NEWCOMER = 4
BACK_S = 86400
OLD = "0.0.9"
SLOW_MS = 3000
TAKE_OVERS = 7  # each of the two proposers takes over so often
GRACE_S = 2
CERTIFICATE_AGE = datetime.timedelta(days=85)
COMPILE_S = 60


class TwoProposers(Incident):
    name = "two_proposers"
    about = "An operator starts a second proposer for the same log."
    expected = Expected(log="second: .*another proposer", remedy="--take-over")
    remedied = "none, since the second one has ended by itself."

    def cause(self) -> None:
        self._second = self.stage.new_proposer("second")
        self._second.start(wait=False)

    def mend(self) -> None:
        assert self._second.ended() == 1


class TwoSupervisors(Incident):
    name = "two_supervisors"
    about = "Two supervisors start a proposer with --take-over whenever theirs has ended."
    expected = Expected(
        log="proposer: .*deposed", alerts=("WalkeeperTermsGrow",),
        metrics=r"walkeeper_safekeeper_term\{.*\} ([7-9]|[1-9][0-9])",
    )  # fmt: skip
    remedied = "stop the second supervisor."

    def cause(self) -> None:
        first = self.stage.proposer
        second = self.stage.new_proposer("second")
        for deposed, leader in [(first, second), (second, first)] * TAKE_OVERS:
            leader.start("--take-over")
            deposed.ended()

    def mend(self) -> None:
        """Leave the first one alone, which leads."""


class DeadSpare(Incident):
    name = "dead_spare"
    about = "A safekeeper is killed, and the only spare is dead, too."
    expected = Expected(
        status="unreachable", exit_code=1, check="members: .*does not answer",
        log="proposer: .*WARNING.*could not replace", alerts=("WalkeeperRepairFails",),
        metrics=r"walkeeper_proposer_failed_repairs_total\{.*\} [1-9]",
        page='"failed": ?[1-9]', remedy="start it",
    )  # fmt: skip
    remedied = "start the member, and take the dead spare off the list with `walkeeper spare rm 4`."

    def cause(self) -> None:
        stage, port = self.stage, free_port()
        stage.proposer.terminate()
        stage.proposer.start("--repair-grace", str(GRACE_S))
        spare = stage.new_safekeeper(NEWCOMER, port, stage.directory / "spare")
        stage.safekeepers.append(spare)
        spare.start()
        stage.run("spare", "add", f"{NEWCOMER}@127.0.0.1:{port}")
        spare.kill()
        stage.begin()
        stage.safekeepers[VICTIM - 1].kill()

    def mend(self) -> None:
        self.stage.safekeepers[VICTIM - 1].start()
        self.stage.run("spare", "rm", str(NEWCOMER))


class Sealed(Incident):
    name = "sealed"
    about = "`settle --seal` for a failover, and the old primary lives on."
    commits = Commits.HANG
    expected = replace(
        NO_PROPOSER, log="proposer: .*(?:deposed|sealed)", page='"sealed": ?true',
        remedy="--resume",
    )  # fmt: skip
    remedied = "`walkeeper proposer --resume`, since no standby was promoted."

    def cause(self) -> None:
        self.stage.run("settle", "--seal", "--yes")

    def mend(self) -> None:
        self.stage.proposer.ended()
        self.stage.proposer.start("--resume")


class WrongMember(Incident):
    name = "wrong_member"
    about = "At the address of a safekeeper answers one of another cluster."
    expected = replace(
        MEMBER_AWAY, status="wrong_log", check="members: .*another log",
        log="proposer: .*127.0.0.1", remedy="start the right safekeeper",
    )  # fmt: skip
    remedied = "start the right one at that address."

    def cause(self) -> None:
        stage, port = self.stage, self.stage.ports[VICTIM - 1]
        self._wrong = stage.new_safekeeper(VICTIM, port, stage.directory / "wrong")
        stage.safekeepers[VICTIM - 1].terminate()
        self._wrong.start()
        with PostgresServer.create() as other:
            address = (("127.0.0.1", port),)
            asyncio.run(create(CreateSettings(address, other.dsn(), stage.name)))
        stage.begin()

    def mend(self) -> None:
        self._wrong.terminate()
        self.stage.safekeepers[VICTIM - 1].start()


class ChangeStuck(Incident):
    name = "change_stuck"
    about = "A newcomer dies while the members change."
    expected = replace(
        MEMBER_AWAY, status="replacing", check="members: the members change to",
        log="proposer: .*(?:lost the connection|cannot reach)",
        page='"joining": ?\\[4\\]|"target": ?\\{', remedy="members cancel",
    )  # fmt: skip
    remedied = "`walkeeper members cancel`."

    def cause(self) -> None:
        stage, port = self.stage, free_port()
        steered = stage.steer(NEWCOMER)
        newcomer = stage.new_safekeeper(NEWCOMER, port, stage.directory / "newcomer")
        stage.safekeepers.append(newcomer)
        newcomer.start()
        steered.slow(SLOW_MS)
        words = ["--safekeepers", stage.addresses, "--timeout", "60s"]
        command = [*Daemon.command, "members", "add", f"{NEWCOMER}@127.0.0.1:{port}", *words]
        self._adding = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: stage.status()["cluster"]["changing"])
        newcomer.kill()
        self._adding.kill()
        self._adding.wait()
        stage.begin()

    def mend(self) -> None:
        self.stage.run("members", "cancel")


class ClockBack(Incident):
    name = "clock_back"
    about = "The clock of a safekeeper's machine is set back by a day."
    expected = Expected(check="clocks: .*safekeeper 3 is -864", remedy="NTP or chrony")
    remedied = "set the clock."

    def cause(self) -> None:
        stage = self.stage
        library = stage.directory / "clock_back.so"
        source = Path(__file__).parent / "clock_back.c"
        words = ["gcc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run([*words, "-ldl"], check=True, timeout=COMPILE_S)
        environment = {"LD_PRELOAD": str(library), "CLOCK_BACK_S": str(BACK_S)}
        stage.restart_with(VICTIM, environment)

    def mend(self) -> None:
        self.stage.restart_with(VICTIM, {})


class OldVersion(Incident):
    name = "old_version"
    about = "A safekeeper still runs an older version after an upgrade."
    expected = Expected(
        check=f"versions: .*{OLD}", alerts=("WalkeeperVersionsDiffer",),
        metrics=f'walkeeper_build_info.*version="{OLD}"', page=f'"version": ?"{OLD}"',
        remedy="finish the upgrade",
    )  # fmt: skip
    remedied = "restart it with the new version."

    def cause(self) -> None:
        metadata = self.stage.directory / "old" / f"walkeeper-{OLD}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: walkeeper\nVersion: {OLD}\n"
        )
        self.stage.restart_with(VICTIM, {"PYTHONPATH": f"{metadata.parent}:{python_path()}"})

    def mend(self) -> None:
        self.stage.restart_with(VICTIM, {})


def python_path() -> str:
    """Return our PYTHONPATH, which is the tree's if it is empty."""
    return os.environ.get("PYTHONPATH") or str(ROOT)


class CertificateEnds(Incident):
    name = "certificate_ends"
    about = "The certificate of a safekeeper ends in five days."
    expected = Expected(
        metrics=r"walkeeper_certificate_end_seconds [1-9]", alerts=("WalkeeperCertificateEnds",),
        log="safekeeper3: .*WARNING.*certificate", remedy="certs renew",
    )  # fmt: skip
    remedied = "`walkeeper certs renew`."

    def cause(self) -> None:
        stage = self.stage
        self._folder = stage.directory / "tls"
        self._folder.mkdir()
        files = TlsFiles(self._folder, NOW - CERTIFICATE_AGE)
        self._file = files.path(Role.SAFEKEEPER, str(VICTIM))
        stage.safekeepers[VICTIM - 1].terminate()
        stage.begin()
        stage.safekeepers[VICTIM - 1].start("--tls", self._file)

    def mend(self) -> None:
        done = walkeeper("certs", "renew", "--dir", str(self._folder / "ca"), self._file)
        assert done.returncode == 0, done
        before = self._ends()
        wait_until(lambda: self._ends() > before)

    def _ends(self) -> float:
        lines = self.stage.asked("/metrics").splitlines()
        found = [line for line in lines if line.startswith("walkeeper_certificate_end_seconds")]
        return float(found[0].split()[-1])
