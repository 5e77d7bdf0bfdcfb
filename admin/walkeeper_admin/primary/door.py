"""The door of a server: it admits all clients of its pg_hba.conf, or a few roles alone. Blocks.

    door = Door(Path("/var/lib/postgresql/15/shop.gate"))
    ticket = door.close(own_files, roles)      before the server starts with `door.arguments`
    door.open(ticket)                          and then the server has to reload

The server reads a link of the door as its hba_file. The link leads to the closed rules, or to the
server's own pg_hba.conf. So a program that rewrites pg_hba.conf and reloads, as Patroni does, opens
no closed door. The door's directory is beside the data directory, where pg_rewind refuses a link.

A closed door stays closed until somebody opens it, over restarts and crashes of the machine.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from walkeeper_admin.primary.hba_rules import ANY_ENCODING, narrowed
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.sync_path import sync_path

SUFFIX = ".gate"
CLOSED = "closed_"
UNFINISHED = ".new"
STATE_PARAMETER = "walkeeper.gate"
SESSION = "walkeeper_gate"  # application_name of the session that waits for the quorum
CONFIGURATION = """\
# walkeeper gate writes this file at each start of the server.
include {config_file}
hba_file = {hba_file}
ident_file = {ident_file}
include 'state.conf'
"""


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The files that the server would read without the door."""

    config_file: str
    hba_file: str
    ident_file: str


class Door:
    """A directory with the link, the closed rules, and a configuration that includes the server's.

    The server takes `hba_file` from its command line. The configuration has the same value.
    Otherwise the server would report a change of `hba_file` that waits for a restart.
    """

    def __init__(self, directory: Path, data_directory: Path | None = None) -> None:
        self._directory, self._data_directory = directory, data_directory
        self._owner = directory / "data_directory"
        self._rules = directory / "pg_hba.conf"
        self._own_rules = directory / "own_pg_hba.conf"
        self._configuration = directory / "postgresql.conf"

    @classmethod
    def beside(cls, data_directory: Path, directory: Path | None = None) -> Door:
        """Return the door of a data directory; `directory` replaces the usual place."""
        data_directory = data_directory.resolve()
        usual = data_directory.with_name(data_directory.name + SUFFIX)
        return cls(directory or usual, data_directory)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments with which postgres reads the door's files.

        They turn off restart_after_crash. A server that restarts by itself after the crash of a
        backend would start with an open door.
        """
        settings = (
            f"config_file={self._configuration}",
            f"hba_file={self._rules}",
            "restart_after_crash=off",
        )
        return tuple(word for setting in settings for word in ("-c", setting))

    def ticket(self) -> str | None:
        """Return the ticket of the closing that is in force, or None if the door is open."""
        try:
            name = os.readlink(self._rules)
        except FileNotFoundError:
            return None
        return name if name.startswith(CLOSED) else None

    def close(self, own: OwnFiles, roles: Sequence[str]) -> str:
        """Close the door durably to all but these roles. Return the ticket that opens it again."""
        with self._changing():
            self._refuse_others(own)
            for path in self._directory.glob(f"*{UNFINISHED}"):  # a crash left it
                path.unlink()
            older = list(self._directory.glob(f"{CLOSED}*"))
            number = max((int(path.name.removeprefix(CLOSED)) for path in older), default=0) + 1
            ticket = f"{CLOSED}{number}"
            rules = Path(own.hba_file).read_text(**ANY_ENCODING)
            text = narrowed(rules, roles, kept=own.hba_file)
            self._write(self._directory / ticket, text)
            self._configure(own)
            self._lead_to(ticket, "closed")
            for path in older:
                path.unlink()
        return ticket

    def prepare(self, own: OwnFiles, roles: Sequence[str]) -> str | None:
        """Prepare a start that need not be closed: the door stays open or closed, as it is.

        Return the ticket of a closed door, or None.
        """
        if self.ticket() is not None:
            return self.close(own, roles)
        with self._changing():
            self._refuse_others(own)
            self._configure(own)
            self._lead_to(own.hba_file, "open")
        return None

    def open(self, ticket: str | None = None) -> bool:
        """Admit all clients; return False if this ticket's closing is not in force any more.

        Without a ticket, open the door in any case. The ticket of an earlier closing opens nothing:
        a later start has closed the door anew, and its server may show more WAL.
        """
        with self._changing():
            found = self.ticket()
            if found is None or (ticket is not None and found != ticket):
                return False
            self._lead_to(os.readlink(self._own_rules), "open")
        return True

    def _refuse_others(self, own: OwnFiles) -> None:
        """Raise Refused for a command with the door's files: each would lead to itself.

        Refuse another server's door as well: its quorum would open both.
        """
        owner = Path(os.readlink(self._owner)) if self._owner.is_symlink() else self._data_directory
        if owner is not None and owner != self._data_directory and owner.is_dir():
            raise Refused(
                f"the door {self._directory} is that of {owner}: give each server a --door of its "
                "own"
            )
        for path in (own.config_file, own.hba_file):
            if Path(path).parent.resolve() == self._directory.resolve():
                raise Refused(
                    f"COMMAND names {path}, a file of the door: start the server with its own "
                    "files. pg_ctl restart repeats the last start's arguments: use stop and start"
                )

    def _configure(self, own: OwnFiles) -> None:
        text = CONFIGURATION.format(
            config_file=_quoted(own.config_file),
            hba_file=_quoted(str(self._rules)),
            ident_file=_quoted(own.ident_file),
        )
        if self._data_directory is not None:
            self._link(self._owner, str(self._data_directory))
        self._write(self._configuration, text)
        self._link(self._own_rules, own.hba_file)

    def _lead_to(self, rules: str, state: str) -> None:
        self._write(self._directory / "state.conf", f"{STATE_PARAMETER} = '{state}'\n")
        self._link(self._rules, rules)

    def _write(self, path: Path, text: str) -> None:
        made = path.with_name(path.name + UNFINISHED)
        made.unlink(missing_ok=True)  # its mode may be another one
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", **ANY_ENCODING) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)

    def _link(self, path: Path, target: str) -> None:
        made = path.with_name(path.name + UNFINISHED)
        made.unlink(missing_ok=True)
        made.symlink_to(target)
        os.replace(made, path)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Run a change under the door's lock and make it durable.

        Raise Refused, with the file, if that fails.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._directory, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_path(self._directory.parent)
        except OSError as error:
            raise Refused(
                f"{error.filename or self._directory}: {error.strerror}: run as the server's user, "
                "and name a directory of that user with --door"
            ) from error


def _quoted(value: str) -> str:
    """Quote a value as postgresql.conf wants it."""
    return "'" + value.replace("\\", r"\\").replace("'", "''") + "'"
