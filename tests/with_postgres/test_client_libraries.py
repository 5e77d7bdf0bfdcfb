"""libpq of other versions, as psycopg loads it, at safekeepers that speak TLS alone.

The library and its OpenSSL are those of the packages that `installations` downloads. Those of 16
and 18 are built without TLS. psycopg's own library is of version 18, and other tests use it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installations import NPM_PACKAGES, binaries_or_skip
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import LIMIT_S
from tests.tls_files import TlsFiles
from tests.with_postgres.test_users import NAME, PASSWORD, PasswordCluster
from walkeeper_cli.certs.authority import CA_CERTIFICATE
from walkeeper_cli.users.writing import add_user, verifier_of
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import User

pytestmark = [pytest.mark.postgres, pytest.mark.soak]

WITH_TLS = (*sorted(NPM_PACKAGES), 17)
DIRECT_SINCE = 17
# One connection for each line of stdin. It prints the version, and each answer or error.
ASKING = """
import json, sys
import psycopg
found = []
for parameters in json.load(sys.stdin):
    try:
        with psycopg.connect(**parameters, autocommit=True) as connection:
            assert connection.pgconn.ssl_in_use
            found.append(str(connection.execute(b"IDENTIFY_SYSTEM").fetchone()[1]))
    except psycopg.OperationalError as error:
        found.append(str(error))
json.dump([psycopg.pq.version() // 10000, found], sys.stdout)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Return the TLS files, with a host's name: libpq 13 and 14 compare no address."""
    directory = tmp_path_factory.mktemp("tls")
    path = PasswordCluster.users = str(directory / "users")
    user = User(NAME, verifier_of(NAME, PASSWORD), frozenset((Role.REPLICA,)))
    add_user(path, user, replaces=False)
    made = TlsFiles(directory)
    for number in (1, 2, 3):
        made.path(Role.SAFEKEEPER, str(number), hosts=("localhost", "127.0.0.1"))
    return made


@pytest.fixture(scope="module")
def cluster(files: TlsFiles) -> Iterator[PasswordCluster]:
    with PostgresServer.create() as server, PasswordCluster.with_files(server, files) as made:
        yield made


def answers(major: int, asked: list[dict[str, str]]) -> list[str]:
    """Return the answer to each connection by libpq of this version."""
    library = {"LD_LIBRARY_PATH": str(binaries_or_skip(major).parent / "lib")}
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        env=server_environment() | library | {"PSYCOPG_IMPL": "python"},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    document: list[Any] = json.loads(done.stdout)
    assert document[0] == major, "another library was loaded"
    return list(document[1])


@pytest.mark.parametrize("major", WITH_TLS)
def test_a_library_logs_in_by_password_and_by_certificate(
    cluster: PasswordCluster, files: TlsFiles, tmp_path: Path, major: int
) -> None:
    own = files.path(Role.SAFEKEEPER, "1")
    mine = files.path(Role.REPLICA, NAME)
    pgpass = tmp_path / "pgpass"
    pgpass.touch(mode=0o600)
    escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    pgpass.write_text(f"localhost:*:*:{NAME}:{escaped}\n")
    base = {
        "host": "localhost",
        "port": str(cluster.ports[0]),
        "user": NAME,
        "dbname": "replication",
        "replication": "true",
        "sslmode": "verify-full",
        "sslrootcert": str(Path(own).parent / "ca" / CA_CERTIFICATE),
        "sslcert": "/none",
        "sslkey": "/none",
    }
    by_password = {**base, "password": PASSWORD}
    admitted = [
        {**by_password, "channel_binding": "require"},
        {**by_password, "channel_binding": "disable"},
        {**by_password, "ssl_max_protocol_version": "TLSv1.2"},
        {**base, "passfile": str(pgpass)},
        {**base, "sslcert": mine, "sslkey": mine},
    ]
    if major >= DIRECT_SINCE:
        admitted.append({**by_password, "sslnegotiation": "direct", "channel_binding": "require"})
    refused = {
        "password authentication failed": {**base, "password": "wrong"},
        "passwords over TLS only": {**by_password, "sslmode": "disable"},
        "does not match host name": {**by_password, "host": "elsewhere", "hostaddr": "127.0.0.1"},
        "certificate verify failed": {**by_password, "sslrootcert": _another_ca(tmp_path)},
    }
    found = answers(major, [*admitted, *refused.values()])
    assert found[: len(admitted)] == ["1"] * len(admitted)
    for said, text in zip(refused, found[len(admitted) :], strict=True):
        assert said in text


def _another_ca(directory: Path) -> str:
    TlsFiles(directory / "other")
    return str(directory / "other" / "ca" / CA_CERTIFICATE)
