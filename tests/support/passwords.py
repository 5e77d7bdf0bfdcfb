"""A users file for a test's safekeepers, which then ask PostgreSQL's clients for a password."""

from __future__ import annotations

from pathlib import Path

from walkeeper_cli.users.writing import add_user, verifier_of
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import User


def users_file_of(path: Path, **passwords: str) -> str:
    """Write the file with these replicas and their passwords; return its path."""
    for name, password in passwords.items():
        user = User(name, verifier_of(name, password), frozenset((Role.REPLICA,)))
        add_user(str(path), user, replaces=False)
    return str(path)
