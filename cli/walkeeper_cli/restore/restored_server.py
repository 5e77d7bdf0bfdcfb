"""What is known of the server that restores: the working directory is its data directory. A shell.

Without one (pg_rewind -c, a person at a shell) nothing is known, and nothing is assumed.
"""

from __future__ import annotations

import os
import re
import subprocess
from struct import error as StructError
from struct import unpack_from

from walkeeper_common.errors import Refused

SETTING_TIMEOUT_S = 20.0


def is_standby() -> bool:
    """It asks again for as long as it runs, and "not there" ends nothing."""
    return os.path.exists("standby.signal")


def is_recovering() -> bool:
    """An archive recovery: "not there" ends it, and opens the server."""
    return os.path.exists("recovery.signal")


def has_segment(name: str) -> bool:
    """PostgreSQL looks into pg_wal when it has been told that there is no such file."""
    return os.path.isfile(os.path.join("pg_wal", name))


def system_id() -> int | None:
    """The first field of pg_control, in the machine's own byte order."""
    try:
        with open("global/pg_control", "rb") as file:
            (identifier,) = unpack_from("=Q", file.read(8))
    except (OSError, StructError):
        return None
    return int(identifier)


def archives_what_it_restores() -> bool:
    """archive_mode = always: a padded part would get into its archive as a whole segment.

    Asked of the server's own program with its own command line, because the setting may be there,
    in any included file or in postgresql.auto.conf. Refused if it cannot be learned.
    """
    try:
        with open("postmaster.opts") as file:
            line = file.read()
    except FileNotFoundError:
        return False  # never started here: this is no server that asks
    except OSError as error:
        raise Refused(f"postmaster.opts cannot be read, so archive_mode is unknown: {error}") from (
            error
        )
    program, arguments = parse_postmaster_opts(line)
    try:
        done = subprocess.run(
            [program, *arguments, "-C", "archive_mode"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETTING_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"archive_mode cannot be learned: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise Refused(f"archive_mode cannot be learned: {program} -C archive_mode: {said}")
    return done.stdout.strip() == "always"


def parse_postmaster_opts(line: str) -> tuple[str, list[str]]:
    """`/usr/…/postgres "-D" "/data"`, as CreateOptsFile writes it: quoted, never escaped.

    A relative -D was meant from where pg_ctl ran; the server has gone to its data directory since.
    """
    program, _, rest = line.strip().partition(' "')
    words: list[str] = re.findall(r'"([^"]*)"', f'"{rest}') if rest else []
    for at, word in enumerate(words[1:], 1):
        if words[at - 1] == "-D" and not os.path.isabs(word):
            words[at] = "."
    return program, words
