"""The answer to WAL that is lost, which is not the end of the log. A shell."""

from __future__ import annotations

from walkeeper_common.errors import Refused
from walkeeper_restore import restored_server
from walkeeper_restore.guard import say
from walkeeper_restore.verdict import Unknown


def answer_to_lost_wal(name: str, why: str, remedy: str) -> str | Unknown:
    """Return "absent" if the server has another source for this WAL: pg_wal or primary_conninfo.

    Return Unknown for a standby without one, which asks again. Raise Refused for a recovery, which
    would end there. `why` is the reason for people, and `remedy` names the other option to use.
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
