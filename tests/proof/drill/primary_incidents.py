"""Incidents of the primary and of its proposer, and of the settings that bind them."""

from __future__ import annotations

import signal
from dataclasses import replace

from tests.proof.drill.incident import NO_PROPOSER, PRIMARY_DOWN, Commits, Expected, Incident


class ProposerKilled(Incident):
    name = "proposer_killed"
    about = "The proposer is killed, and no supervisor starts it."
    commits = Commits.HANG
    expected = replace(
        NO_PROPOSER, log="safekeeper[123]: .*(?:WARNING|ERROR|LOG):.*proposer",
        page='"proposer": ?null', remedy="start `walkeeper proposer`",
    )  # fmt: skip
    remedied = "start `walkeeper proposer`."

    def cause(self) -> None:
        self.stage.proposer.kill()

    def mend(self) -> None:
        self.stage.proposer.start()


class PrimaryKilled(Incident):
    name = "primary_killed"
    about = "All processes of the primary are killed."
    commits = Commits.FAIL
    expected = replace(
        PRIMARY_DOWN, check="FAILED members: .*no connection to the primary",
        log="proposer: .*lost the primary",
    )  # fmt: skip
    remedied = "start the primary."

    def cause(self) -> None:
        self.stage.primary.kill()

    def mend(self) -> None:
        self.stage.primary.start()


class PrimaryHung(Incident):
    name = "primary_hung"
    about = "All processes of the primary stop with SIGSTOP, and its connections stay."
    commits = Commits.FAIL
    expected = replace(
        PRIMARY_DOWN, check="FAILED members: .*primary",
        log="proposer: .*(?:WARNING|LOG|ERROR).*primary",
    )  # fmt: skip
    remedied = "let it go on, as after a hung machine."

    def cause(self) -> None:
        self.stage.signal_primary(signal.SIGSTOP)

    def mend(self) -> None:
        self.stage.signal_primary(signal.SIGCONT)


class NamesChanged(Incident):
    name = "names_changed"
    about = "ALTER SYSTEM clears synchronous_standby_names by hand."
    expected = Expected(
        status="unprotected", exit_code=1, check="attached: .*does not require",
        log="proposer: .*WARNING.*without the quorum", alerts=("WalkeeperUnprotected",),
        metrics=r"walkeeper_proposer_synchronous\{.*\} 0", page='"sync_state": ?"async"',
        remedy="walkeeper attach",
    )  # fmt: skip
    remedied = "`walkeeper attach`."

    def cause(self) -> None:
        self.stage.primary.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
        self.stage.primary.reload()

    def mend(self) -> None:
        self.stage.run_at_primary("attach")

    def check_arguments(self) -> dict[str, object]:
        return {"dsn": self.stage.primary.dsn(), "archive_wait_s": 1.0}


class LoweredCommit(Incident):
    name = "lowered_commit"
    about = "A role has synchronous_commit at off."
    expected = Expected(
        status="lowered", exit_code=1, check="members: some commits do not wait",
        alerts=("WalkeeperLowered",), metrics=r"walkeeper_proposer_lowered_settings\{.*\} 1",
        page='"lowered": ?\\["', remedy="reset synchronous_commit",
        log="proposer: .*WARNING.*synchronous_commit",
    )  # fmt: skip
    remedied = "`ALTER ROLE … RESET synchronous_commit`."

    def cause(self) -> None:
        self.stage.primary.sql(
            "CREATE ROLE careless LOGIN", "ALTER ROLE careless SET synchronous_commit = off"
        )

    def mend(self) -> None:
        self.stage.primary.sql("ALTER ROLE careless RESET synchronous_commit")
