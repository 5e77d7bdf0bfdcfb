"""Why libpq could not connect: the server's SQLSTATE decides, as its words are in any language.

    show_sqlstate(pg)                      before the connection begins
    hide_sqlstate(pg)                      when it stands: later errors have a field for it
    failure = connect_failure(text, …)     the facts of one that failed

libpq keeps no SQLSTATE of a connection that fails. Its verbose errors have one in their text, at a
fixed place. psycopg lacks PQsetErrorVerbosity, so ctypes takes it from the libpq that psycopg has
loaded. Without that function, and for errors of libpq itself, the words decide.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from psycopg import pq
from psycopg.pq.misc import find_libpq_full_path

DEFAULT, VERBOSE = 1, 2  # PGVerbosity
POINTER = "pgconn_ptr"  # an attribute that psycopg documents for ctypes
# Classes of errors that stay until a person changes something: not supported, a wrong password or
# role, a missing database, a missing right.
LASTING_CLASSES = ("0A", "28", "3D", "42")
# The same in words, for an error without a SQLSTATE.
LASTING = (
    "authentication failed",
    "no pg_hba.conf entry",
    "must be superuser",
    "permission denied",
    "does not exist",
    "no password supplied",
    "not permitted",
    "certificate",
)
_SQLSTATE = re.compile(r":  ([0-9A-Z]{5}): ")  # after the severity, which is in any language
_LOCATION = re.compile(r"\n\S+:  (?:\w+, )?[\w./]+:\d+(?=\n|$)")  # its label, too

SetVerbosity = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class ConnectFailure:
    """A connection that failed; `sqlstate` is empty if no server gave one."""

    text: str
    sqlstate: str
    is_lasting: bool


@cache
def _set_verbosity() -> SetVerbosity | None:
    """Return libpq's function, or None if it is not found."""
    file = sys.modules[pq.PGconn.__module__].__file__ or ""
    try:
        # A compiled psycopg is linked to its libpq, and a look-up in it comes to that one.
        library = ctypes.CDLL(find_libpq_full_path() if file.endswith(".py") else file)
        function = library.PQsetErrorVerbosity
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


def show_sqlstate(connection: pq.abc.PGconn) -> None:
    """Let the errors of this connection have their SQLSTATE in the text."""
    _set(connection, VERBOSE)


def hide_sqlstate(connection: pq.abc.PGconn) -> None:
    """Let the errors of this connection have the usual text."""
    _set(connection, DEFAULT)


def _set(connection: pq.abc.PGconn, verbosity: int) -> None:
    function, pointer = _set_verbosity(), getattr(connection, POINTER, None)
    if function is not None and pointer is not None:
        function(pointer, verbosity)


def connect_failure(text: str, *, needs_password: bool) -> ConnectFailure:
    """Return the facts of libpq's text. The last attempt counts: with TLS, then perhaps without."""
    states = _SQLSTATE.findall(text)
    sqlstate = states[-1] if states else ""
    shown = _LOCATION.sub("", _SQLSTATE.sub(":  ", text))
    if sqlstate:
        return ConnectFailure(shown, sqlstate, sqlstate.startswith(LASTING_CLASSES))
    is_lasting = needs_password or any(words in text for words in LASTING)
    return ConnectFailure(shown, "", is_lasting)
