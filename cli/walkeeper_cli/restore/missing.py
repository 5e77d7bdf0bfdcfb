"""The answer to WAL that is lost, which is not the end of the log. A shell."""

from __future__ import annotations

from walkeeper_cli.restore import restored_server
from walkeeper_cli.restore.verdict import Unknown
from walkeeper_cli.restore_guard import say
from walkeeper_common.errors import Refused


def missing(name: str, why: str, remedy: str) -> str | Unknown:
    """Return the verdict on lost WAL.

    Only a server with another source (pg_wal, primary_conninfo) may go on. Raise Refused for a
    recovery, which has none.
    """
    if restored_server.has_segment(name):
        return "absent"  # PostgreSQL looks there next
    if not restored_server.is_standby():
        raise Refused(f"{name} is lost here: {why}. Take a newer base backup, or use {remedy}")
    text = f"{name} is missing: {why}"
    if not restored_server.setting("primary_conninfo"):
        return Unknown(f"{text}; it has to come from {remedy} or from primary_conninfo")
    say(f"{text}; the standby needs it from primary_conninfo")
    return "absent"
