"""One log's state in `walkeeper status --json`. Reads, decides nothing.

Spec: docs/reference/status-json.md.
"""

from __future__ import annotations

from walkeeper_common.history import History, closed_lsn, cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.times import shown_time
from walkeeper_common.quorum import Configuration, member_id
from walkeeper_common.wire.member_change import replaced_text, wiped_member
from walkeeper_safekeeper.consensus.acceptor_answers import LEASE_TICKS
from walkeeper_safekeeper.hosting.hosted_log import HostedLog

HISTORY_SHOWN_MAX = 32


def log_status(log: HostedLog) -> dict[str, object]:
    """Return the safekeeper's own columns, its facts of the cluster, and its standbys."""
    log.driver.settle()  # a commit that has returned is in the positions below
    acceptor, configuration = log.driver.acceptor, log.configuration
    durable, logical = acceptor.durable, log.readable.logical
    history = cut(durable.history, acceptor.flush_lsn)
    replaced = replaced_text(acceptor.member, configuration, durable.history)
    return {
        "incarnation": durable.incarnation.hex(),
        "term": durable.ballot.term,
        "last_log_term": history[-1].ballot.term,
        "write_lsn": str(acceptor.write_lsn),
        "flush_lsn": str(acceptor.flush_lsn),
        "commit_lsn": str(acceptor.commit_lsn),
        "restart_lsn": str(acceptor.restart_lsn),
        "first_lsn": str(acceptor.oldest_lsn),
        "lacks_bytes": log.lacks_bytes,
        "lacks_reason": log.lacks_reason,
        "archived_lsn": None if log.offload is None else str(log.offload.archived_lsn),
        "archive": _archive(log),
        "timeline": history[-1].timeline,
        "history": _shown_history(history[-HISTORY_SHOWN_MAX:]),
        "kind": configuration.kind.name.lower(),
        "end_lsn": None if logical is None else str(logical.end_lsn),
        "needed_lsn": None if logical is None else _text(logical.needed_lsn),
        "sealed": history[-1].sealed,
        "closed_lsn": _text(closed_lsn(history)),
        "failure": acceptor.failure or acceptor.refusal or replaced,
        "trouble": _trouble(log, replaced),
        "kept_bytes": max(0, acceptor.commit_lsn - log.driver.store.first_lsn),
        "kept_for": _kept_for(log),
        **_disk(log),
        "proposer": _proposer(log),
        "primary": _primary(log),
        "away": _away(log),
        "cluster": _cluster(log.cluster, configuration),
        "standbys": _standbys(log),
        "slots": [
            {
                "slot_name": slot.name,
                "temporary": slot.temporary,
                "active_pid": slot.active_pid,
                "restart_lsn": _text(slot.restart_lsn),
            }
            for slot in log.readable.slots.slots
        ],
    }


def _cluster(name: str, configuration: Configuration) -> dict[str, object]:
    return {
        "name": name,
        "log_uuid": configuration.log_uuid.hex(),
        "system_id": str(configuration.system_id),
        "generation": configuration.generation,
        "segment_bytes": configuration.segment_bytes,
        "members": list(configuration.members),
        "leaving": configuration.leaving or None,
        "joining": configuration.joining or None,
        "ack_quorum": configuration.ack_quorum,
        "ack_zones": configuration.ack_zones,
        "zones": list(configuration.zones),
        "target": _target(configuration),
        "spares": list(configuration.spares),
        "server_version": configuration.server_version,
    }


def _target(configuration: Configuration) -> dict[str, object] | None:
    """Return the set that is to follow while the members change, or None."""
    target = configuration.target
    if target is None:
        return None
    known: dict[str, object] = {"members": list(target.members), "ack_quorum": target.ack_quorum}
    known |= {"ack_zones": target.ack_zones, "zones": list(target.zones)}
    return known | {"is_learning": configuration.is_learning}


def _shown_history(history: History) -> list[dict[str, object]]:
    """Return the fragments, oldest first."""
    return [
        {
            "term": each.ballot.term,
            "start_lsn": str(each.start_lsn),
            "timeline": each.timeline,
            "sealed": each.sealed,
            "generation": each.generation or None,
            "members": [member_id(member) for member in each.members],
            "ack_quorum": each.ack_quorum,
        }
        for each in history
    ]


def _disk(log: HostedLog) -> dict[str, object]:
    """Return the speed of the log's disk, and the result of its scrub."""
    flaw = log.scrub.flaw
    return {
        "fsync_s": log.times.fsync.mean_s,
        "damage": None if flaw is None else flaw.text,
        "scrubs": log.scrub.passes,
        "repairs": log.scrub.repairs,
        "differences": log.scrub.differences,
    }


def _archive(log: HostedLog) -> dict[str, object] | None:
    """Return the archive's state, with the reason if it does not move."""
    if log.offload is None:
        return None
    plan, gap = log.offload.plan, log.offload.gap
    return {
        "url": log.offload.archive.url,
        "offloading": plan.is_offloading,
        "segments_due": plan.due_segments,
        "failure": log.offload.failure,
        "still_s": log.offload.still_s,
        "tail_lsn": _text(log.offload.tail_lsn),
        "first_lsn": str(log.driver.store.first_lsn),
        "gap": None if gap is None else [str(lsn) for lsn in gap],
    }


def _proposer(log: HostedLog) -> dict[str, str] | None:
    """Return the elected proposer that is connected here, or None."""
    acceptor = log.driver.acceptor
    if acceptor.appender is None or acceptor.silent_ticks >= LEASE_TICKS:
        return None
    proposer_id = acceptor.durable.ballot.proposer_id
    address, application_name = log.sessions.known(proposer_id) or ("", "")
    return {"id": proposer_id.hex(), "address": address, "application_name": application_name}


def membership_trouble(member: str, configuration: Configuration, history: History) -> str:
    """Return the kind of trouble of a safekeeper that is no member."""
    return "no_log" if wiped_member(member, configuration, history) else "replaced"


def _trouble(log: HostedLog, replaced: str | None) -> str | None:
    """Return the kind of `failure`, one of the verdict's troubles, or None."""
    acceptor = log.driver.acceptor
    if acceptor.failure:
        return "failed"
    if acceptor.refusal:
        return "refusing"
    if replaced:
        return membership_trouble(acceptor.member, log.configuration, acceptor.durable.history)
    return "damaged" if log.scrub.flaw else None


def _kept_for(log: HostedLog) -> str | None:
    """Return the reader, member or setting that needs the oldest WAL of this disk.

    Return None for a logical log, whose slots have PostgreSQL's LSNs."""
    if log.readable.logical is not None:
        return None
    acceptor = log.driver.acceptor
    slots = log.readable.slots.slots.holding(has_archive=log.offload is not None)
    needs = [(slot.retention_lsn, f"slot {slot.name}") for slot in slots]
    needs += [(reader.retention_lsn, reader.application_name) for reader in log.readable.readers]
    needs.append((acceptor.restart_lsn, "the slowest member"))
    if log.offload is not None:
        needs.append((log.offload.archived_lsn, "the archive"))
    known = [(lsn, whom) for lsn, whom in needs if lsn is not None and lsn < acceptor.commit_lsn]
    needed_lsn, whom = min(known, default=(acceptor.commit_lsn, "--wal-keep-size"))
    segment_bytes = log.configuration.segment_bytes
    is_needed = needed_lsn - log.driver.store.first_lsn < segment_bytes
    return whom if is_needed else "--wal-keep-size"


def _primary(log: HostedLog) -> dict[str, object] | None:
    """Return the report of the elected proposer about its primary, or None without a recent one."""
    report = log.sessions.primary.of(log.driver.acceptor.durable.ballot.proposer_id)
    if report is None:
        return None
    return {
        "connected": report.connected,
        "streaming": report.streaming,
        "sync_state": report.sync_state or None,
        "since": shown_time(report.since),
        "waiting": report.waiting,
        "waiting_since": shown_time(report.waiting_since),
        "lowered": list(report.lowered),
        "error": report.error or None,
        "repair": report.repair or None,
    }


def _away(log: HostedLog) -> list[dict[str, object]] | None:
    """Return the members without an answer to the elected proposer, or None without a report."""
    report = log.sessions.away.of(log.driver.acceptor.durable.ballot.proposer_id)
    if report is None:
        return None
    return [
        {
            "id": one.acceptor_id or None,
            "address": one.address,
            "since": shown_time(one.since),
        }
        for one in report.away
    ]


def _standbys(log: HostedLog) -> list[dict[str, object]]:
    return [
        {
            "application_name": reader.application_name,
            "client_addr": reader.client_addr,
            "state": reader.state.value,
            "sent_lsn": str(reader.sent_lsn),
            "write_lsn": str(reader.write_lsn),
            "flush_lsn": str(reader.flush_lsn),
            "replay_lsn": str(reader.replay_lsn),
            "slot_name": reader.slot,
        }
        for reader in log.readable.readers
    ]


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
