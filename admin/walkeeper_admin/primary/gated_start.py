"""`walkeeper gate --exec`: starts a server for another program, such as Patroni. A shell.

    start = prepare(command, roles, door_directory)      then exec start.command, which is postgres

Two starts are closed: that of a primary, and that of a standby whose data directory was a primary's
before. Patroni starts a primary as a standby after a crash of the machine. Such a standby replays
its own WAL, which may be on no quorum. Other standbys have WAL of the log, so they start open.

The start has to be quick, so the module imports no library. Patroni takes a process for a
postmaster only if it began at most 3 s before the time in postmaster.pid.
"""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from walkeeper_admin.primary.door import Door, OwnFiles
from walkeeper_admin.primary.running_server import running_pid
from walkeeper_common.errors import Refused
from walkeeper_common.postgres.control_data import (
    InvalidControlData,
    State,
    parse_control_data,
)

ASK_TIMEOUT_S = 10.0
# The first words with which postgres is no server.
OTHER_MODES = (
    *("--single", "--boot", "--check", "--describe-config"),
    *("--version", "-V", "--help", "-?"),
)
EXCLUSIVE_BACKUP = b"BACKUP METHOD: pg_start_backup"
OF_A_STANDBY = (State.SHUT_DOWN_IN_RECOVERY, State.IN_ARCHIVE_RECOVERY)


@dataclass(frozen=True, slots=True)
class Start:
    """The command to exec. `ticket` is None if the server admits all clients from the beginning."""

    command: tuple[str, ...]
    data_directory: Path | None = None
    ticket: str | None = None


def prepare(command: Sequence[str], roles: Sequence[str], directory: Path | None) -> Start:
    """Close the door if the start has to be closed, and return the command with its arguments."""
    program, *arguments = command
    if (arguments and arguments[0] in OTHER_MODES) or "-C" in arguments:
        return Start(tuple(command))
    data, *files = _asked(command, ("data_directory", "config_file", "hba_file", "ident_file"))
    data_directory, own = Path(data), OwnFiles(*files)
    if (pid := running_pid(data_directory)) is not None:
        # It may end before postgres would refuse, and the new server would have no door.
        raise Refused(f"the server of {data_directory} runs already (pid {pid}): stop it first")
    door = Door.beside(data_directory, directory)
    closes = may_show_more_than_the_log(data_directory)
    ticket = door.close(own, roles) if closes else door.prepare(own, roles)
    return Start((program, *arguments, *door.arguments), data_directory, ticket)


def may_show_more_than_the_log(data_directory: Path) -> bool:
    """Return True unless the server starts as a standby whose data was a standby's before.

    A base backup and a data directory behind pg_rewind have a backup_label: they never ran here.
    In an exclusive backup, before PostgreSQL 15, the primary's own directory has one.
    """
    if not (data_directory / "standby.signal").exists():
        return True
    try:
        with suppress(FileNotFoundError):
            return EXCLUSIVE_BACKUP in (data_directory / "backup_label").read_bytes()
        content = (data_directory / "global" / "pg_control").read_bytes()
        return parse_control_data(content).state not in OF_A_STANDBY
    except (OSError, InvalidControlData):
        return True


def in_background(run: Callable[[], object]) -> None:
    """Run a function in a process that is not this one's child, and return at once.

    This process becomes postgres, which reaps only the children that it started itself.
    """
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _asked(command: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the values that postgres would start with; its own text is on stderr if it fails."""
    program, *arguments = command
    asking: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            words = [program, "-C", name, *arguments]
            asking.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        answers = [each.communicate(timeout=ASK_TIMEOUT_S)[0] for each in asking]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{program} -C: {error}. COMMAND has to be postgres itself") from error
    finally:
        for each in asking:
            each.kill()
            each.wait()
    if failed := [each.returncode for each in asking if each.returncode]:
        raise Refused(f"{program} -C ended with {failed[0]}: mend its configuration")
    return [os.fsdecode(answer).rstrip("\n") for answer in answers]
