"""Placeholders of timeline numbers in pg_wal that `settle --replayed-by` has put there (R23).

    remove_stale(name)      before `walkeeper restore` answers for a history file; standard library

A placeholder is for the promotion of a running standby. A server that starts anew would look for
that timeline and end with "requested timeline N is not a child of this server's history".
"""

from __future__ import annotations

import os

PLACEHOLDER = (
    "# walkeeper: reserved for another server; remove this file if PostgreSQL cannot start"
)
STATUS_LINE = 7
STARTING = "starting"


def remove_stale(name: str) -> bool:
    """Remove the placeholder `name` if the server here is starting. Return True if it did so."""
    path = os.path.join("pg_wal", name)
    try:
        with open("postmaster.pid", encoding="utf-8", errors="replace") as file:
            status = file.read().splitlines()[STATUS_LINE].strip()
        if status != STARTING:
            return False
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") != PLACEHOLDER:
                return False
        os.unlink(path)
    except (OSError, IndexError):
        return False
    return True
