"""The two phases that create a log on one safekeeper (docs/protocol.md R17). Pure.

*Prepare* makes a random incarnation durable under a log uuid. *Configure* makes the same record
durable on every member. Both may be repeated with identical values, and other values are refused. A
promise is never overwritten, and no vote is given before configure.
"""

from __future__ import annotations

from dataclasses import replace

from walkeeper_common.cluster_name import check_cluster_name
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import is_segment_size
from walkeeper_common.quorum import Configuration, flaw_of, member_name
from walkeeper_common.wire.requests import LogState, PrepareLog
from walkeeper_safekeeper.consensus.durable import Durable


def prepared(
    existing: Durable | None, ask: PrepareLog, *, acceptor_id: int, incarnation: bytes
) -> Durable:
    """Return the control file after phase 1, `existing` itself if it is that already.

    Raise Refused if it is another log's.
    """
    check_cluster_name(ask.cluster)
    if existing is None:
        return Durable(acceptor_id=acceptor_id, incarnation=incarnation, log_uuid=ask.log_uuid)
    if existing.log_uuid != ask.log_uuid:
        raise Refused(
            f"safekeeper {acceptor_id} holds log {existing.log_uuid.hex()} under "
            f"{ask.cluster!r} already; remove its folder if it was never used"
        )
    return existing


def configured(existing: Durable, configuration: Configuration) -> Durable:
    """Return the control file after phase 2, `existing` itself if it is that already.

    Raise Refused if the configuration is another one than before, or is flawed.
    """
    name = member_name(existing.acceptor_id, existing.incarnation)
    if existing.configuration is not None:
        if existing.configuration == configuration:
            return existing
        raise Refused(f"safekeeper {existing.acceptor_id} has another configuration of this log")
    if configuration.log_uuid != existing.log_uuid or name not in configuration.members:
        raise Refused(f"{name} was not prepared for log {configuration.log_uuid.hex()}")
    flaw = flaw_of(configuration)
    if flaw is not None:
        raise Refused(flaw)
    start, size = configuration.creation_lsn, configuration.segment_bytes
    if not is_segment_size(size) or start % size:
        raise Refused(f"a log cannot start at {start} in segments of {size} bytes")
    members, quorum = configuration.members, configuration.ack_quorum
    creation = Fragment(NO_BALLOT, start, configuration.timeline, False, members, quorum)
    return replace(
        existing,
        configuration=configuration,
        history=(creation,),
        commit_lsn=start,
        restart_lsn=start,
        reached_lsn=start,
    )


def state_of(acceptor_id: int, durable: Durable | None) -> LogState:
    """Return the answer to LogQuery, PrepareLog and ConfigureLog."""
    if durable is None:
        return LogState(acceptor_id, bytes(16), bytes(16), NO_BALLOT, None)
    return LogState(
        acceptor_id, durable.incarnation, durable.log_uuid, durable.ballot, durable.configuration
    )
