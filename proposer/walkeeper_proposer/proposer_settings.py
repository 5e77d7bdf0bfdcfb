"""The settings of `walkeeper proposer`."""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.addresses import Address


@dataclass(frozen=True, slots=True)
class ProposerSettings:
    """One daemon's flags; addresses as (host, port)."""

    safekeepers: tuple[Address, ...]
    dsn: str
    cluster: str = "main"
    slot: str = "walkeeper"
    application_name: str = "walkeeper"
    http: Address | None = None
    take_over: bool = False
    follow: bool = False
    resume: bool = False
    unsafe_settings: bool = False
    apply_quorum: bool = True
    publications: tuple[str, ...] = ()  # a logical log's; empty for a physical one
    messages: bool = False  # with pg_logical_emit_message's
    spool_directory: str | None = None  # for transactions that are open at the primary
    spool_bytes_max: int = 4 << 30
    repair_grace_s: float = 60.0  # a member is silent for so long before a spare replaces it
    log_level: str = "INFO"
    log_json: bool = False
