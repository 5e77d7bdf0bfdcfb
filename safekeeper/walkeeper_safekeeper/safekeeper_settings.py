"""The settings of `walkeeper safekeeper`."""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_archive.layout import Packing
from walkeeper_common.addresses import Address


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Where and how WAL is archived."""

    url: str
    packing: Packing = Packing.PLAIN
    tail_interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SafekeeperSettings:
    """One daemon's flags. Sizes are in bytes, addresses (host, port); port 0 is any free one."""

    acceptor_id: int
    data_dir: str
    listen: Address
    http: Address | None = None
    wal_keep_bytes: int = 1 << 30
    wal_bytes_max: int | None = None
    archive: ArchiveSettings | None = None
    allow_unauthenticated: bool = False
    require_tls: bool = False
    users: str | None = None  # the path of the users file
    audit_json: bool = False
    log_level: str = "INFO"
    log_json: bool = False
    scrub_bytes_s: int = 1 << 20  # 0: no scrub
    fill_bytes_s: int = 32 << 20  # 0: a log that begins late is not filled
    copy_dsns: tuple[str, ...] = ()  # servers that copy tables for subscriptions
    repair_from: tuple[Address, ...] = ()  # other members, for WAL that is damaged or not here
