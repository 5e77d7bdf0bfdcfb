"""A proposer's --http: its state and its members' positions. It reads and never decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from walkeeper_common.addresses import Address
from walkeeper_common.metrics import Sample, samples
from walkeeper_common.operator_text.zones import lacking_zones
from walkeeper_common.shell.http.http_endpoints import Endpoints
from walkeeper_fastpath.ports import Commits
from walkeeper_fastpath.switch import is_on, state
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.postgres.sync_state import SyncState
from walkeeper_proposer.proposer_metrics import (
    FAST_PATH,
    OF_COMMITS,
    OF_LEADER,
    OF_MEMBER,
    OF_PRIMARY,
    OF_PROPOSER,
    OF_REPAIRS,
    SPOOLED,
    Led,
    MemberOf,
)
from walkeeper_proposer.proposer_settings import ProposerSettings
from walkeeper_proposer.repairs import Repairs


def endpoints(
    settings: ProposerSettings,
    core: Callable[[], Proposer],
    addresses: Callable[[], Sequence[Address]],
    spooled_bytes: Callable[[], int],
    sync_state: SyncState,
    commits: Commits,
    repairs: Repairs,
) -> Endpoints:
    """Return the endpoints for `serve_http`. `core` returns the proposer of the current life.
    `addresses` are its links', more than the settings' once a member has joined. `spooled_bytes`
    counts transactions that are open at the primary of a logical log."""

    def not_ready() -> str | None:
        leader = core().leader
        if leader is None:
            return core().phase.value
        if not leader.is_streaming:
            return "not streaming from the primary"
        attached, configuration = _attached(core()), leader.configuration
        if configuration.commits(attached):
            return None
        zones = lacking_zones(configuration.sets, attached)
        counted = f"{len(attached)} of {configuration.holders_min} safekeepers"
        return f"commits hang: {zones or counted}"

    def status() -> dict[str, object]:
        proposer, leader = core(), core().leader
        return {
            "cluster": settings.cluster,
            "application_name": settings.application_name,
            "phase": proposer.phase.value,
            "ballot": str(proposer.ballot),
            "commit_lsn": str(leader.commit_lsn) if leader else None,
            "received_lsn": str(leader.window.end_lsn) if leader else None,
            "sync_state": sync_state.value,
            "spooled_bytes": spooled_bytes(),
            "fast_path": state(),
            "commits": {"count": sum(commits.times.counts), "sum_s": commits.times.sum_s},
            "repairs": repairs.facts,
            "safekeepers": [_shown(member, addresses()) for member in proposer.members],
        }

    def figures() -> Sequence[Sample]:
        labels = {"cluster": settings.cluster}
        found = [
            *_of_core(core(), addresses(), labels),
            *samples(OF_COMMITS, commits, labels),
            *samples(OF_PRIMARY, sync_state, labels),
            *samples(OF_REPAIRS, repairs, labels),
        ]
        if settings.publications:
            found.append(Sample(SPOOLED, float(spooled_bytes()), labels))
        return found

    return Endpoints(not_ready, status, figures)


def _shown(member: Member, addresses: Sequence[Address]) -> dict[str, object]:
    return {
        "address": "{}:{}".format(*addresses[member.link]),
        "stage": member.stage.value,
        "attached": member.attached,
        "flush_lsn": str(member.flush_lsn),
        "next_lsn": str(member.next_lsn),
    }


def _attached(core: Proposer) -> list[str | None]:
    return [member.name for member in core.members if member.attached]


def _of_core(
    core: Proposer, addresses: Sequence[Address], labels: Mapping[str, str]
) -> Iterator[Sample]:
    yield from samples(OF_PROPOSER, core, labels)
    yield Sample(FAST_PATH, float(is_on()), labels)
    if core.leader is not None:
        yield from samples(OF_LEADER, Led(core.leader, _attached(core)), labels)
    for member in core.members:
        named = {**labels, "safekeeper": "{}:{}".format(*addresses[member.link])}
        yield from samples(OF_MEMBER, MemberOf(member, core.leader), named)
