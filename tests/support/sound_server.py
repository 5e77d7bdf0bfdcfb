"""A healthy PostgreSQL's report of itself; tests add its identity and position."""

from __future__ import annotations

from typing import Any

SOUND_SERVER: dict[str, Any] = {
    "server_version": "15.18",
    "server_version_num": 150018,
    "in_recovery": False,
    "fsync": True,
    "full_page_writes": True,
}
