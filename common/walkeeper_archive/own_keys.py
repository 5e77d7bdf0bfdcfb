"""The keys of this process for archives, from a file or from the environment. A shell.

    use_keys(value)       the value of --archive-keys: a file, or env:NAME
    own_keys() -> ring    read once for each version of the file; empty without the option

The value also goes into this process's environment, for the processes that it starts: `restore` of
a check, the readers of a history. Spark's executors need the variable by themselves.
"""

from __future__ import annotations

import functools
import os
import stat

from walkeeper_archive.sealing import KeyRing, parse_keys
from walkeeper_common.errors import Refused

VARIABLE = "WALKEEPER_ARCHIVE_KEYS"
FROM_ENVIRONMENT = "env:"


def use_keys(value: str | None) -> None:
    """Use these keys from now on, or none; raise Refused if they cannot be used."""
    if value is None:
        os.environ.pop(VARIABLE, None)
        return
    is_file = not value.startswith(FROM_ENVIRONMENT)
    os.environ[VARIABLE] = os.path.abspath(value) if is_file else value
    own_keys()


def own_keys() -> KeyRing:
    """Return the keys; raise Refused if they cannot be read."""
    value = os.environ.get(VARIABLE)
    if not value:
        return KeyRing()
    if value.startswith(FROM_ENVIRONMENT):
        name = value.removeprefix(FROM_ENVIRONMENT)
        text = os.environ.get(name)
        if not text:
            raise Refused(f"--archive-keys names the variable {name}, which is not set: set it")
        return parse_keys(text, f"the variable {name}")
    try:
        found = os.stat(value)
    except OSError as error:
        raise Refused(f"cannot read the keys in {value}: {error.strerror}") from error
    if stat.S_IMODE(found.st_mode) & 0o007:
        raise Refused(f"every user may read the keys in {value}: run chmod 640 {value}")
    return _read(value, (found.st_mtime_ns, found.st_ino, found.st_size))


@functools.lru_cache(maxsize=4)
def _read(path: str, stamp: tuple[int, ...]) -> KeyRing:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return parse_keys(file.read(), path)
    except OSError as error:
        raise Refused(f"cannot read the keys in {path}: {error.strerror}") from error
