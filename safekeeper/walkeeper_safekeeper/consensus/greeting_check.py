"""Is a proposer's greeting about this log? (docs/steps.md#greeting, R17.) Pure."""

from __future__ import annotations

from walkeeper_common.quorum import LogKind
from walkeeper_common.wire.messages import PROTOCOL_VERSION, UNKNOWN_LOG_UUID, ProposerGreeting
from walkeeper_safekeeper.consensus.durable import Durable

_KINDS = {
    LogKind.LOGICAL: "logical: start its proposer with --logical --publication P",
    LogKind.PHYSICAL: "physical: start its proposer without --logical",
}


def other_log(greeting: ProposerGreeting, durable: Durable) -> str | None:
    """Return why a greeting is about another log, or None.

    A greeting may leave uuid and system_id open.
    """
    configuration = durable.configuration
    if greeting.protocol_version != PROTOCOL_VERSION:
        return f"protocol version {greeting.protocol_version} is not spoken here"
    if greeting.log_uuid not in (UNKNOWN_LOG_UUID, durable.log_uuid):
        return (
            f"cluster {greeting.cluster!r} is log {durable.log_uuid.hex()} here, "
            f"not {greeting.log_uuid.hex()}"
        )
    if configuration is None:
        return None
    # `settle` comes without a primary and does not know which kind it is.
    if greeting.system_id and greeting.kind != configuration.kind:
        return (
            f"the log of cluster {greeting.cluster!r} is {_KINDS[configuration.kind]}; or name "
            f"a {greeting.kind.name.lower()} log in --cluster"
        )
    if greeting.system_id and greeting.system_id != configuration.system_id:
        return (
            f"the log belongs to the PostgreSQL cluster with system identifier "
            f"{configuration.system_id}, this primary has {greeting.system_id}; check --dsn, "
            "--safekeepers and --cluster"
        )
    if greeting.system_id and greeting.segment_bytes != configuration.segment_bytes:
        return (
            f"the log has WAL segments of {configuration.segment_bytes} bytes, "
            f"this primary of {greeting.segment_bytes}"
        )
    return None
