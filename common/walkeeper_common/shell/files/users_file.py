"""The users file of `safekeeper --users`, which `walkeeper user` writes. A shell."""

from __future__ import annotations

from walkeeper_common.access.users import Users, parse_users
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.reloaded_file import ReloadedFile

BYTES_MAX = 4 << 20


def users_file(path: str) -> ReloadedFile[Users]:
    """Return the file; raise Refused if it cannot be used."""
    return ReloadedFile(
        path, load_users, what="users file", option="--users", secret="verifiers of passwords"
    )


def load_users(path: str) -> Users:
    """Return the users in this file; raise Refused if it cannot be read."""
    return read_users(path)[1]


def read_users(path: str) -> tuple[str, Users]:
    """Return the text of the file and its users; raise Refused if its lines are none."""
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise Refused(f"it has more than {BYTES_MAX >> 20} MB")
        text = data.decode()
        return text, parse_users(text)
    except OSError as error:
        raise Refused(f"cannot read the users file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, Refused) as error:
        raise Refused(f"the users file {path} is not usable: {error}") from error
