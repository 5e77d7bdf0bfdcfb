"""The purpose of one run of a proposer, and its phases. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from walkeeper_common.quorum import Configuration, LogKind, joined_addresses
from walkeeper_proposer.consensus.admission import Waivers
from walkeeper_proposer.consensus.primary_check import Examiner, PrimaryCheck
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX

CAMPAIGN_TICKS_MAX = 10
TERMS_MAX = 1000
ABSENT_TICKS = 1  # how long a settle waits for absent members


class Phase(Enum):
    GREETING = "greeting"
    CHECKING = "checking the primary"
    CAMPAIGNING = "campaigning"
    CHECKING_VOTES = "checking the primary against the votes"
    LEADING = "leading"
    BACKING_OFF = "backing off"
    STOPPED = "stopped"


class Purpose(Enum):
    """ATTACH streams from a primary. SETTLE elects without one.

    SEAL also ends the timeline, and CLOSE the log."""

    ATTACH = "attach"
    SETTLE = "settle"
    SEAL = "seal"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Campaign:
    """The purpose of one run; proposer_id is fresh for each run (docs/protocol.md#glossary)."""

    cluster: str
    proposer_id: bytes
    links: int
    purpose: Purpose = Purpose.ATTACH
    application_name: str = ""
    waivers: Waivers = field(default_factory=Waivers)
    take_over: bool = False
    window_bytes_max: int = WINDOW_BYTES_MAX
    terms_max: int = TERMS_MAX  # more of them in a history are folded
    kind: LogKind = LogKind.PHYSICAL
    examine: Examiner = PrimaryCheck
    linger_ticks: int = 0  # how long a settle waits for members that its quorum does not need
    addresses: frozenset[str] = frozenset()  # the links'; if empty, none can be added
    linked: frozenset[str] = frozenset()  # members that have a link because they joined
    linked_generation: int = 0  # the generation by which these links were made
    writes_nonces: bool = False  # then retention goes by nonces (R22)

    def needs_other_links(self, configuration: Configuration) -> bool:
        """Return True if a member that joined has no link, or one that was given up still has one.

        The shell then adds or drops links. An older configuration, of a member that lags, changes
        none: a proposer would begin anew without end.
        """
        if not self.addresses or configuration.generation <= self.linked_generation:
            return False
        joined = joined_addresses(configuration)
        if any(address not in self.addresses for address in joined):
            return True
        return not self.linked <= set(configuration.everyone)

    def lingers(self, missing: int, ticks: int) -> bool:
        """Return True while `settle` waits for answers that its quorum does not need.

        WAL on one safekeeper alone is no commit, but haste is no reason to truncate it
        (scenarios/settle_keeps_the_longest_log.txt).
        """
        return missing > 0 and ticks < min(self.linger_ticks, ABSENT_TICKS)


def seals(purpose: Purpose, *, promoted: bool, was_sealed: bool) -> bool:
    """Return True if the term's entry is sealed.

    `settle` keeps a seal, and `settle --seal` sets it. A primary accepted on this timeline lifts
    it. A promoted primary leaves it on the parent timeline, so the old primary stays shut out.
    """
    keeps = purpose in (Purpose.SETTLE, Purpose.CLOSE) or promoted
    return purpose is Purpose.SEAL or (keeps and was_sealed)


def closes(purpose: Purpose, *, was_closed: bool) -> bool:
    """Return True if the term's entry closes the log. A closed log stays closed (M7)."""
    return purpose is Purpose.CLOSE or was_closed
