"""A proposer's --http: its state and its members' positions. It reads and never decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walkeeper_common.addresses import Address
from walkeeper_common.shell.http_endpoints import Endpoints, Gauge
from walkeeper_fastpath.switch import is_on, state
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.postgres.sync_state import SyncState
from walkeeper_proposer.settings import ProposerSettings


def endpoints(
    settings: ProposerSettings,
    core: Callable[[], Proposer],
    addresses: Callable[[], Sequence[Address]],
    spooled_bytes: Callable[[], int],
    sync_state: SyncState,
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
        attached, needed = _attached(core()), leader.configuration.ack_quorum
        return None if attached >= needed else f"commits hang: {attached} of {needed} safekeepers"

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
            "safekeepers": [
                {
                    "address": "{}:{}".format(*addresses()[member.link]),
                    "stage": member.stage.value,
                    "attached": member.attached,
                    "flush_lsn": str(member.flush_lsn),
                    "next_lsn": str(member.next_lsn),
                }
                for member in proposer.members
            ],
        }

    def gauges() -> Sequence[Gauge]:
        gauges, labels = (
            _gauges(settings.cluster, core(), addresses()),
            {"cluster": settings.cluster},
        )
        if (is_waited_for := sync_state.is_waited_for) is not None:
            text = "1: the primary's commits wait for it."
            waited = float(is_waited_for)
            gauges.append(Gauge("walkeeper_proposer_synchronous", text, waited, labels))
        if settings.publications:
            text = "Of transactions open at the primary."
            spooled = float(spooled_bytes())
            gauges.append(Gauge("walkeeper_proposer_spooled_bytes", text, spooled, labels))
        return gauges

    return Endpoints(not_ready, status, gauges)


def _attached(core: Proposer) -> int:
    return sum(member.attached for member in core.members)


def _gauges(cluster: str, core: Proposer, addresses: Sequence[Address]) -> list[Gauge]:
    labels, leader = {"cluster": cluster}, core.leader
    figures: list[tuple[str, str, float]] = [
        ("leading", "1: elected.", leader is not None),
        ("term", "The term of its ballot.", core.ballot.term),
        ("fast_path", "1: the compiled fast path is on; see `walkeeper --version`.", is_on()),
    ]
    if leader is not None:
        window = leader.window
        figures += [
            ("commit_lsn_bytes", "The end of WAL that a quorum has.", leader.commit_lsn),
            ("received_lsn_bytes", "The end of WAL received of the primary.", window.end_lsn),
            ("window_bytes", "WAL in memory.", window.end_lsn - window.begin_lsn),
            ("streaming", "1: the primary sends.", leader.is_streaming),
            (
                "quorum",
                "1: as many safekeepers are attached as a commit needs.",
                _attached(core) >= leader.configuration.ack_quorum,
            ),
            ("paused", "1: the window is full of WAL that no quorum has.", leader.is_paused),
        ]
    gauges = [Gauge(f"walkeeper_proposer_{n}", t, float(v), labels) for n, t, v in figures]
    for member in core.members:
        address = "{}:{}".format(*addresses[member.link])
        lag = leader.window.end_lsn - member.flush_lsn if leader and member.attached else 0
        named = {**labels, "safekeeper": address}
        attached = float(member.attached)
        gauges.append(Gauge("walkeeper_member_attached", "1: it counts.", attached, named))
        gauges.append(Gauge("walkeeper_member_lag_bytes", "Received, not flushed.", lag, named))
    return gauges
