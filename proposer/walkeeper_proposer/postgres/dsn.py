"""A libpq connection string, taken apart by libpq itself: environment, services, defaults."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from psycopg import conninfo, pq
from psycopg import errors as pg_errors

from walkeeper_common.addresses import is_host
from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.hidden_secrets import without_secrets

DIGITS = re.compile("[0-9]{1,5}")
PORT_MAX = 65535
CONNECT_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S_MIN = 2.0  # as in libpq


class InvalidDsn(Refused):
    """The DSN cannot be used; `reason` says why, without the name of the option."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"--dsn: {reason}")
        self.reason = reason


def libpq_parameters(dsn: str) -> dict[str, str]:
    """Return all parameters of the DSN, its service, the environment and the defaults.

    Raise InvalidDsn if libpq does not understand the DSN.
    """
    stopped = _stopped(dsn)
    try:
        found = {option.keyword.decode(): option.val for option in stopped.info}
        if not any(found.values()):
            reason = pq.misc.error_message(stopped)
            raise InvalidDsn(f"not a connection string that libpq understands: {reason}")
    finally:
        stopped.finish()
    parameters = {name: value.decode() for name, value in found.items() if value}
    _check_places(parameters)
    return parameters


def password_of(dsn: str, server: Mapping[str, str]) -> str | None:
    """Return the password from the DSN, the environment or .pgpass, or None.

    `server`: the parameters of one server.
    """
    stopped = _stopped(dsn, **server)
    try:
        return stopped.password.decode() or None
    finally:
        stopped.finish()


def no_password(dsn: str, database: str) -> str:
    """Return why there is no password; libpq ignores a file that others may read."""
    file = libpq_parameters(dsn).get("passfile") or os.path.expanduser("~/.pgpass")
    try:
        mode = os.stat(file).st_mode
    except OSError:
        mode = 0
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"{file} is ignored, as others may read it: chmod 600 {file}"
    return f"neither --dsn nor {file} has a password for database {database}"


def _stopped(dsn: str, **parameters: str) -> pq.abc.PGconn:
    """Return a connection that libpq has stopped before any look-up and connect.

    libpq fills all parameters in before it checks them, and stops at a value that it does not know.
    Raise InvalidDsn if the DSN is invalid."""
    try:
        text = conninfo.make_conninfo(dsn, **parameters, channel_binding="do-not-connect")
    except pg_errors.ProgrammingError as error:
        said = without_secrets(str(error), dsn)
        raise InvalidDsn(f"not a connection string: {said}") from None
    return pq.PGconn.connect_start(text.encode())


def servers_of(parameters: Mapping[str, str]) -> list[dict[str, str]]:
    """Return host, hostaddr and port of each server, as far as they are given."""
    lists = {n: parameters[n].split(",") for n in ("host", "hostaddr", "port") if n in parameters}
    count = max(map(len, lists.values()), default=1)
    return [
        {n: all_[at if len(all_) > 1 else 0] for n, all_ in lists.items()} for at in range(count)
    ]


def _check_places(parameters: Mapping[str, str]) -> None:
    """Raise InvalidDsn for flaws that libpq would find again with each connection."""
    ports = parameters.get("port", "").split(",")
    hosts = (parameters.get("hostaddr") or parameters.get("host", "")).split(",")
    for host in parameters.get("host", "").split(","):
        if not host.startswith("/") and not is_host(host):
            raise InvalidDsn(f"{host!r} cannot be a host's name")
    if any(port and not _is_port(port) for port in ports):
        raise InvalidDsn(f"ports are numbers from 1 to 65535, not {parameters['port']!r}")
    if len(ports) not in (1, len(hosts)):
        raise InvalidDsn(f"{len(ports)} ports for {len(hosts)} hosts")
    if not parameters.get("connect_timeout", "0").lstrip("-").isdecimal():
        raise InvalidDsn(f"connect_timeout is a number, not {parameters['connect_timeout']!r}")


def _is_port(text: str) -> bool:
    return bool(DIGITS.fullmatch(text)) and 1 <= int(text) <= PORT_MAX


def time_limit_s(parameters: Mapping[str, str]) -> float:
    """Return the time limit for each server: connect_timeout, or ours by default."""
    timeout_s = float(parameters.get("connect_timeout", 0))
    return max(timeout_s, CONNECT_TIMEOUT_S_MIN) if timeout_s > 0 else CONNECT_TIMEOUT_S
