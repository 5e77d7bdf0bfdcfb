"""SQL to the primary, through asyncpg. A shell.

The DSN is libpq's, and asyncpg gets its parts. Parts that asyncpg does not know (GSSAPI, channel
binding) are left out.

No statement may wait for synchronous replication, since `detach` runs while commits hang. A
session sets synchronous_commit = local first, so that not even a write would wait.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlencode

import asyncpg

from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres.dsn import (
    libpq_parameters,
    no_password,
    password_of,
    servers_of,
    time_limit_s,
)

STATEMENT_TIMEOUT_S = 10.0
NO_LIMIT_S = 10 * 365 * 86400.0  # for asyncpg, which takes None as its default limit
SETTINGS = f"SET synchronous_commit = local; SET statement_timeout = '{STATEMENT_TIMEOUT_S:g}s'"
# Parameters that asyncpg takes only from a DSN of its own, under libpq's names.
TLS_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl")
TLS_VERSIONS = ("ssl_min_protocol_version", "ssl_max_protocol_version")
TLS_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
NOWHERE = f"{os.devnull}/none"
SYSTEM = "system"  # as sslrootcert: the operating system's authorities
SOCKET_DIRECTORIES = ("/run/postgresql", "/var/run/postgresql", "/tmp")
TOO_MANY_CONNECTIONS = "53300"
# asyncpg's errors if a connection cannot be made or is lost. An InternalClientError is one, too. A
# server's last words (FATAL) between two queries leave asyncpg in a state without further queries.
LOST = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class SqlFailed(Refused):
    """The statement or the connection failed; `sqlstate` is empty if the server gave none."""

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class NotConnected(SqlFailed):
    """There is no SQL connection: the server is away, or admits none of this role."""

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(f"no SQL connection to the primary: {text}", sqlstate)
        self.reason = text


def connection_arguments(dsn: str) -> dict[str, Any]:
    """Return libpq's view of a DSN as asyncpg's arguments.

    "host", "port" and "password" are lists of one length."""
    value = libpq_parameters(dsn)
    # libpq's default, a database named after the user, is rarely there; any database does here.
    named = value.get("dbname", "postgres")
    database = "postgres" if named == value.get("user") else named
    servers = servers_of(value)
    # asyncpg wants its "host" in the certificate, so that must not be an address then.
    verifies = value.get("sslmode") == "verify-full" or value.get("sslrootcert") == SYSTEM
    places = ("host", "hostaddr") if verifies else ("hostaddr", "host")
    directory = next((d for d in SOCKET_DIRECTORIES if os.path.isdir(d)), "localhost")
    hosts = [next((each[n] for n in places if each.get(n)), directory) for each in servers]
    arguments: dict[str, Any] = {
        "host": hosts,
        "port": [int(each.get("port") or 5432) for each in servers],
        # asyncpg has its own reading of .pgpass, without escapes, and warns of it in Python's way.
        "passfile": NOWHERE,
        "password": [password_of(dsn, {**each, "dbname": database}) for each in servers],
        "database": database,
        "timeout": time_limit_s(value),
        "target_session_attrs": value.get("target_session_attrs", "any"),
    }
    if "user" in value:
        arguments["user"] = value["user"]
    return arguments | _tls(value)


def _tls(value: Mapping[str, str]) -> dict[str, Any]:
    """Return asyncpg's arguments for TLS; raise Refused for an unreadable file."""
    for name in TLS_FILES:
        if name in value and value[name] != SYSTEM:
            _check_readable(name, value[name])
    if value.get("sslrootcert") == SYSTEM:  # asyncpg would look for a file of this name
        context = ssl.create_default_context()
        if "sslcert" in value:
            files = value["sslcert"], value.get("sslkey")
            try:
                context.load_cert_chain(*files, password=value.get("sslpassword", ""))
            except OSError as error:
                raise Refused(f"--dsn: sslcert={files[0]} sslkey={files[1]}: {error}") from error
        return {"ssl": context}
    tls = {name: value[name] for name in TLS_PARAMETERS if name in value}
    if any(name in value for name in ("sslrootcert", "sslcert")):
        tls |= {name: value[name] for name in TLS_VERSIONS if name in value}
    return {"dsn": f"postgresql:///?{urlencode(tls)}"}


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise Refused(f"--dsn: {name}={path}: {error.strerror}") from error


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Open one SQL connection; raise Refused, with the server's text, for a failure on it."""
    arguments = connection_arguments(dsn)
    with _not_connected(arguments):
        connection = await _connect(dsn, arguments)
    try:
        with _not_connected(arguments):
            await connection.execute(SETTINGS)
        yield connection
    except TimeoutError:
        raise Refused(f"PostgreSQL did not answer within {STATEMENT_TIMEOUT_S:g} s") from None
    except asyncpg.InternalClientError as error:
        raise Refused("PostgreSQL ended the connection; its log says why") from error
    except (asyncpg.PostgresError, *LOST) as error:
        raise SqlFailed(f"PostgreSQL: {error}", getattr(error, "sqlstate", "")) from error
    finally:
        await _close(connection)


@contextmanager
def _not_connected(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Raise NotConnected for a failure before the connection can be used."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _refused(error) from error
    except LOST as error:
        raise NotConnected(_why(error, arguments)) from error


async def _connect(dsn: str, arguments: dict[str, Any]) -> asyncpg.Connection:
    """Connect to the first server that accepts; each has the whole time limit.

    (asyncpg divides the limit among its hosts.) Raise NotConnected with the reasons of all servers,
    which may be from a service file."""
    lists = (arguments["host"], arguments["port"], arguments["password"])
    reasons: list[str] = []
    for host, port, password in zip(*lists, strict=True):
        try:
            return await asyncpg.connect(
                **arguments | {"host": host, "port": port, "password": password},
                command_timeout=STATEMENT_TIMEOUT_S,
                server_settings={"application_name": "walkeeper_sql"},
            )
        except asyncpg.InvalidPasswordError as error:
            if password is None:
                text = no_password(dsn, arguments["database"])
                raise NotConnected(f"{error}; {text}", error.sqlstate) from error
            raise
        except (*LOST, asyncpg.CannotConnectNowError) as error:
            where = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host} port {port}"
            reasons.append(f"{where}: {_why(error, arguments)}")
    raise NotConnected("; ".join(reasons))


def _why(error: Exception, arguments: Mapping[str, Any]) -> str:
    match error:
        case TimeoutError():
            return f"no answer within {arguments['timeout']:g} s"
        case asyncpg.TargetServerAttributeNotMatched():
            return f"it is not as target_session_attrs={arguments['target_session_attrs']} asks"
        case ssl.SSLError():
            return str(error)  # an OSError whose number is OpenSSL's
        case OSError(errno=number) if number is not None and number > 0:
            return os.strerror(number)  # asyncio's own texts repeat the address
        case OSError(strerror=text) if text:
            return text
        case _:
            return str(error)


def _refused(error: asyncpg.PostgresError) -> NotConnected:
    text = str(error)
    if error.sqlstate == TOO_MANY_CONNECTIONS:
        text += (
            "; commits that hang hold their connections: connect as a superuser, for whom "
            "superuser_reserved_connections are kept"
        )
    return NotConnected(text, error.sqlstate)


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=1)
    except (asyncpg.PostgresError, *LOST):
        connection.terminate()


async def terminate_slot_user(dsn: str, slot: str) -> int | None:
    """End the walsender that holds a slot, and return its PID, or None if none holds it.

    A role may end its own connections."""
    async with connected(dsn) as sql:
        row = await sql.fetchrow(
            "SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE slot_name = $1 AND active_pid IS NOT NULL",
            slot,
        )
    return None if row is None else row["active_pid"]
