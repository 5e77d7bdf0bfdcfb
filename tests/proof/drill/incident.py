"""An incident: how it is caused, what each view must say of it, and the remedy. Abstract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from tests.proof.drill.incident_stage import Stage
from tests.support.postgres_server import PostgresServer


class Commits(Enum):
    """The state of commits during the incident."""

    GO_ON = "go on"
    HANG = "hang"
    FAIL = "no primary"


@dataclass(frozen=True, slots=True)
class Expected:
    """The answer of each view. None means that this view has nothing to say of the incident.

    `status` is a reason's code, `exit_code` that of --check, and `alerts` have names, pending or
    firing. Only a drill with --fire waits for `late_alerts`, since their expression takes minutes.
    The others are patterns. `check` is for a line that is not OK, and `log` for any daemon's log.
    `page` is for the /status that a page shows. Any view has to print the words of `remedy`."""

    status: str | None = None
    exit_code: int = 0
    check: str | None = None
    log: str | None = None
    metrics: str | None = None
    page: str | None = None
    alerts: tuple[str, ...] = ()
    late_alerts: tuple[str, ...] = ()
    remedy: str | None = None


# The answers to what several incidents have in common; each incident adds its own.
MEMBER_AWAY = Expected(
    exit_code=1, alerts=("WalkeeperMemberAway",),
    metrics=r"walkeeper_member_attached\{.*\} 0", page='"attached": ?false',
)  # fmt: skip
NO_PROPOSER = Expected(
    status="no_proposer", exit_code=2, check="FAILED members: no proposer leads",
    alerts=("WalkeeperNoProposer",), metrics=r"walkeeper_safekeeper_proposer_connected\{.*\} 0",
)  # fmt: skip
PRIMARY_DOWN = Expected(
    status="primary_down", exit_code=2, alerts=("WalkeeperNotStreaming",),
    metrics=r"walkeeper_proposer_streaming\{.*\} 0", page='"streaming": ?false',
    remedy="start the primary",
)  # fmt: skip


class Incident(ABC):
    """One incident on a stage of its own."""

    name: ClassVar[str]
    about: ClassVar[str]
    expected: ClassVar[Expected]
    commits: ClassVar[Commits] = Commits.GO_ON
    remedied: ClassVar[str]  # the remedy that `mend` runs, for the page

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @abstractmethod
    def cause(self) -> None:
        """Create the fault. `stage.begin()` restarts the clock after preparations."""

    @abstractmethod
    def mend(self) -> None:
        """Run the remedy that the views print."""

    def check_arguments(self) -> dict[str, object]:
        """Return the options of `walkeeper check` beside --safekeepers."""
        return {}

    def keeper(self) -> PostgresServer:
        """Return the server that must have all acknowledged rows in the end."""
        return self.stage.primary
