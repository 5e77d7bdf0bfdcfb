"""What `walkeeper safekeeper` was told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SafekeeperSettings:
    """One daemon's flags; sizes in bytes, addresses as (host, port), port 0: any free one."""

    acceptor_id: int
    data_dir: str
    listen: tuple[str, int]
    http: tuple[str, int] | None = None
    wal_keep_bytes: int = 1 << 30
    allow_unauthenticated: bool = False
    log_level: str = "INFO"
