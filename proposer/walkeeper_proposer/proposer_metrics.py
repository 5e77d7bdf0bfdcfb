"""The figures of a proposer's /metrics, in tables. They read and never decide."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from walkeeper_common.metrics import Figure, counter, gauge, histogram
from walkeeper_fastpath.ports import Commits
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.postgres.sync_state import SyncState
from walkeeper_proposer.repairs import Repairs

LABELS = ("cluster",)
MEMBER = ("cluster", "safekeeper")

OF_PROPOSER: tuple[Figure[Proposer], ...] = (
    Figure(
        gauge("walkeeper_proposer_leading", "1 if it is elected.", LABELS),
        lambda core: core.leader is not None,
    ),
    Figure(
        gauge("walkeeper_proposer_term", "The term of its ballot.", LABELS),
        lambda core: core.ballot.term,
    ),
)


@dataclass(frozen=True, slots=True)
class Led:
    """A leader, and the names of its members that are attached."""

    leader: Leader
    attached: Collection[str | None]


OF_LEADER: tuple[Figure[Led], ...] = (
    Figure(
        gauge(
            "walkeeper_proposer_commit_lsn_bytes",
            "The end of WAL that a quorum has.",
            LABELS,
            unit="bytes",
        ),
        lambda led: led.leader.commit_lsn,
    ),
    Figure(
        gauge(
            "walkeeper_proposer_received_lsn_bytes",
            "The end of WAL received from the primary.",
            LABELS,
            unit="bytes",
        ),
        lambda led: led.leader.window.end_lsn,
    ),
    Figure(
        gauge("walkeeper_proposer_window_bytes", "WAL in memory.", LABELS, unit="bytes"),
        lambda led: led.leader.window.end_lsn - led.leader.window.begin_lsn,
    ),
    Figure(
        gauge("walkeeper_proposer_streaming", "1 if the primary sends WAL.", LABELS),
        lambda led: led.leader.is_streaming,
    ),
    Figure(
        gauge(
            "walkeeper_proposer_quorum",
            "1 if the safekeepers that are attached suffice for a commit.",
            LABELS,
        ),
        lambda led: led.leader.configuration.commits(led.attached),
    ),
    Figure(
        gauge(
            "walkeeper_proposer_paused", "1 if the window is full of WAL without a quorum.", LABELS
        ),
        lambda led: led.leader.is_paused,
    ),
    Figure(
        gauge(
            "walkeeper_proposer_spares",
            "Safekeepers that may take the place of a silent member.",
            LABELS,
        ),
        lambda led: len(led.leader.configuration.spares),
    ),
)

OF_COMMITS: tuple[Figure[Commits], ...] = (
    Figure(
        histogram(
            "walkeeper_proposer_commit_seconds",
            "Time from the arrival of WAL until a quorum has it, sampled.",
            LABELS,
        ),
        lambda commits: commits.times,
    ),
)

OF_PRIMARY: tuple[Figure[SyncState], ...] = (
    Figure(
        gauge(
            "walkeeper_proposer_synchronous",
            "1 if the primary's commits wait for this proposer. Absent while it is not known.",
            LABELS,
        ),
        lambda state: state.is_waited_for,
    ),
    Figure(
        gauge(
            "walkeeper_proposer_commits_waiting",
            "Commits at the primary that have waited for 5 s or longer.",
            LABELS,
        ),
        lambda state: None if state.value is None else state.commits.waiting,
    ),
    Figure(
        gauge(
            "walkeeper_proposer_lowered_settings",
            "Roles, databases and servers whose synchronous_commit is off or local.",
            LABELS,
        ),
        lambda state: None if state.value is None else len(state.commits.lowered),
    ),
)

OF_REPAIRS: tuple[Figure[Repairs], ...] = (
    Figure(
        gauge("walkeeper_proposer_repairing", "1 while a spare takes a member's place.", LABELS),
        lambda repairs: repairs.is_under_way,
    ),
    Figure(
        counter("walkeeper_proposer_repairs_total", "Members that a spare has replaced.", LABELS),
        lambda repairs: repairs.done,
    ),
    Figure(
        counter(
            "walkeeper_proposer_failed_repairs_total",
            "Repairs that got no further for the grace time.",
            LABELS,
        ),
        lambda repairs: repairs.failed,
    ),
)

FAST_PATH = gauge(
    "walkeeper_proposer_fast_path",
    "1 if the compiled fast path is on; `walkeeper --version` says why not.",
    LABELS,
)
SPOOLED = gauge(
    "walkeeper_proposer_spooled_bytes",
    "Bytes of transactions that are open at the primary of a logical log.",
    LABELS,
    unit="bytes",
)


@dataclass(frozen=True, slots=True)
class MemberOf:
    """A member, and the leader that feeds it, if there is one."""

    member: Member
    leader: Leader | None


OF_MEMBER: tuple[Figure[MemberOf], ...] = (
    Figure(
        gauge("walkeeper_member_attached", "1 if this member counts for commits.", MEMBER),
        lambda at: at.member.attached,
    ),
    Figure(
        gauge(
            "walkeeper_member_lag_bytes",
            "WAL that was received and that this member has not flushed.",
            MEMBER,
            unit="bytes",
        ),
        lambda at: (
            at.leader.window.end_lsn - at.member.flush_lsn
            if at.leader and at.member.attached
            else 0
        ),
    ),
)

METRICS = (
    *(figure.metric for figure in OF_PROPOSER),
    *(figure.metric for figure in OF_LEADER),
    *(figure.metric for figure in OF_COMMITS),
    *(figure.metric for figure in OF_PRIMARY),
    *(figure.metric for figure in OF_REPAIRS),
    FAST_PATH,
    SPOOLED,
    *(figure.metric for figure in OF_MEMBER),
)
