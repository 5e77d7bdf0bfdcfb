"""Facts about the server that restores; the working directory is its data directory. A shell.

Without a server (pg_rewind -c, a user at a shell) no fact is known, and none is assumed.
"""

from __future__ import annotations

import os
import re

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.operator_text.printable import in_one_line

SETTING_TIMEOUT_S = 20.0


def is_standby() -> bool:
    """Return True for a standby: it asks again and again, so the answer "absent" ends nothing."""
    return os.path.exists("standby.signal")


def is_recovering() -> bool:
    """Return True for an archive recovery: the answer "absent" ends it and opens the server."""
    return os.path.exists("recovery.signal")


def has_segment(name: str) -> bool:
    """Return True if pg_wal has this segment; PostgreSQL looks there after the answer "absent"."""
    return os.path.isfile(os.path.join("pg_wal", name))


class NotLearned(WalkeeperError):
    """A setting of the server could not be read now."""


def setting(name: str) -> str:
    """Return a setting of the server, or "" if there is no server.

    The server's own program reads it, with the server's command line. The setting may be on that
    line, in any included file or in postgresql.auto.conf. Raise NotLearned if that fails.
    """
    import subprocess  # most requests need no setting

    try:
        with open("postmaster.opts") as file:
            program, arguments = parse_postmaster_opts(file.read())
        done = subprocess.run(
            [program, *arguments, "-C", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETTING_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        if error.filename == "postmaster.opts":
            return ""  # no server was ever started here
        raise NotLearned(f"{name} cannot be learned: {error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotLearned(f"{name} cannot be learned: {error}") from error
    if done.returncode:
        said = in_one_line(done.stderr)
        raise NotLearned(f"{name} cannot be learned: {program} -C {name}: {said}")
    return done.stdout.strip()


def parse_postmaster_opts(line: str) -> tuple[str, list[str]]:
    """Return the program and the arguments of a line such as `/usr/…/postgres "-D" "/data"`.

    PostgreSQL (CreateOptsFile) quotes the words and never escapes. A relative -D is relative to the
    directory of pg_ctl. The server has since changed to its data directory, so -D becomes ".".
    """
    program, _, rest = line.strip().partition(' "')
    words: list[str] = re.findall(r'"([^"]*)"', f'"{rest}') if rest else []
    for at, word in enumerate(words[1:], 1):
        if words[at - 1] == "-D" and not os.path.isabs(word):
            words[at] = "."
    return program, words
