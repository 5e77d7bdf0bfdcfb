"""What is known of the server that restores: the working directory is its data directory. A shell.

Without one (pg_rewind -c, a person at a shell) nothing is known, and nothing is assumed.
"""

from __future__ import annotations

import os
import re
import subprocess

from walkeeper_common.errors import WalkeeperError

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


class NotLearned(WalkeeperError):
    """A setting of the server could not be read now."""


def setting(name: str) -> str:
    """Of the server; empty without one.

    Asked of the server's own program with its own command line, because the setting may be there,
    in any included file or in postgresql.auto.conf.
    """
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
            return ""  # never started here: this is no server that asks
        raise NotLearned(f"{name} cannot be learned: {error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotLearned(f"{name} cannot be learned: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise NotLearned(f"{name} cannot be learned: {program} -C {name}: {said}")
    return done.stdout.strip()


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
