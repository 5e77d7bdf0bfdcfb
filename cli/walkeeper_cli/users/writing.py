"""Change one line of a users file, and keep all others as they are.

The file is replaced whole, with mode 0600. Two commands at the same time run one after the other.
The verifier of a password is libpq's own, so it has PostgreSQL's rules for Unicode.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from walkeeper_common.access.users import User, Users, name_in, parse_users
from walkeeper_common.errors import Refused
from walkeeper_common.postgres.scram import PLAIN, Verifier
from walkeeper_common.shell.files.private_file import write_private
from walkeeper_common.shell.files.users_file import read_users


def verifier_of(name: str, password: str) -> Verifier:
    """Return the verifier of a password; a text that is one already stays, as in CREATE ROLE."""
    from psycopg import pq

    if password.startswith(f"{PLAIN}$"):
        return Verifier.parse(password)
    if not password or "\0" in password:
        raise Refused("the password is empty, or has a byte 0 in it; choose another one")
    libpq = pq.PGconn.connect_start(b"none")  # no host: it makes the verifier, and connects nowhere
    text = libpq.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
    return Verifier.parse(text.decode())


def add_user(path: str, user: User, *, replaces: bool) -> None:
    """Write the user's line; raise Refused if there is such a user and it `replaces` none."""
    with _alone(path):
        text, users = _present(path)
        if user.name in users.by_name and not replaces:
            raise Refused(f"{path} has the user {user.name} already: add --replace to change it")
        lines = text.split("\n") if text else []
        while lines and not lines[-1]:
            lines.pop()
        place = _line_of(user.name, lines)
        if place is None:
            lines.append(user.line())
        else:
            lines[place] = user.line()
        _write(path, lines)


def remove_user(path: str, name: str) -> None:
    """Remove the user's line; raise Refused if there is none."""
    with _alone(path):
        text, _ = read_users(path)
        lines = text.rstrip("\n").split("\n")
        place = _line_of(name, lines)
        if place is None:
            raise Refused(f"{path} has no user {name}: walkeeper user ls shows those that it has")
        del lines[place]
        _write(path, lines)


def _present(path: str) -> tuple[str, Users]:
    if not os.path.lexists(path):
        return "", Users()
    return read_users(path)


def _line_of(name: str, lines: list[str]) -> int | None:
    return next((n for n, line in enumerate(lines) if name_in(line) == name), None)


def _write(path: str, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    parse_users(text)  # never write what a safekeeper refuses
    write_private(path, text.encode())


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Hold the lock of the file's directory; the file itself is replaced."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(f"cannot open the directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
