"""What was there and cannot be had any more is not the end of the log. A shell."""

from __future__ import annotations

from walkeeper_cli.restore import restored_server
from walkeeper_cli.restore.verdict import Unknown
from walkeeper_cli.restore_guard import say
from walkeeper_common.errors import Refused


def missing(name: str, why: str, remedy: str) -> str | Unknown:
    """Only who has another source for it may go on without: pg_wal, or primary_conninfo."""
    if restored_server.has_segment(name):
        return "absent"  # PostgreSQL looks there next
    if not restored_server.is_standby():
        raise Refused(f"{name} is lost here: {why}. Take a newer base backup, or say {remedy}")
    text = f"{name} is missing: {why}"
    if not restored_server.setting("primary_conninfo"):
        return Unknown(f"{text}; it has to come from {remedy} or from primary_conninfo")
    say(f"{text}; primary_conninfo has to have it")
    return "absent"
