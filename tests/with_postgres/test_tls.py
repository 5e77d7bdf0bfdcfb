"""A primary that takes nobody without TLS and a certificate of his own: libpq's DSN is all we need.

Two libraries read it, libpq for replication and asyncpg for SQL, and have to agree on what it says.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.cluster import Cluster, walkeeper
from tests.support.postgres_server import PostgresServer, own

pytestmark = pytest.mark.postgres

HBA = """\
local   all          all                    trust
local   replication  all                    trust
hostssl all          postgres 127.0.0.1/32  cert
hostssl replication  postgres 127.0.0.1/32  cert
"""
SIZES = (100, 8_100, 16_300, 16_400, 24_000, 65_000, 300_000)  # around a TLS record and more
PAUSE_S_MAX = 25  # a keepalive would end a stall after 30 s


class TlsServer(PostgresServer):
    """`given`: what a DSN says of its certificates."""

    given: dict[str, str]

    def dsn(self, **parameters: str | int) -> str:
        return super().dsn(**{**self.given, **parameters})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, other.pem of somebody else, client.pem with client.key."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(directory / "other.pem"))
    server, client = authority.issue_cert("localhost"), authority.issue_cert(common_name="postgres")
    for name, made in (("server", server), ("client", client)):
        made.cert_chain_pems[0].write_to_path(str(directory / f"{name}.pem"))
        made.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        (directory / f"{name}.key").chmod(0o600)
    return directory


@pytest.fixture(scope="module")
def server(certificates: Path) -> Iterator[TlsServer]:
    """Its certificate is for localhost, its address is given beside that."""
    with TlsServer.create({"ssl": "on"}, start=False) as made:
        assert isinstance(made, TlsServer)
        made.given = {
            "host": "localhost",
            "hostaddr": "127.0.0.1",
            "sslmode": "verify-full",
            "sslrootcert": str(certificates / "ca.pem"),
            "sslcert": str(certificates / "client.pem"),
            "sslkey": str(certificates / "client.key"),
        }
        for source, target in (("server.pem", "server.crt"), ("server.key", "server.key")):
            (made.data / target).write_bytes((certificates / source).read_bytes())
        (made.data / "server.key").chmod(0o600)
        made.configure({"ssl_ca_file": "ca.pem"})
        (made.data / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
        (made.data / "pg_hba.conf").write_text(HBA)
        own(made.data)
        made.start()
        yield made


def test_commits_of_every_size_return_at_once(server: TlsServer) -> None:
    """Decrypted bytes are no event of the socket any more: they must not be left there."""
    sizes = [*SIZES * 3]
    random.Random(5).shuffle(sizes)
    with Cluster.create(server) as cluster:
        assert server.sql(
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)"
        )
        with server.connect() as sql:
            for size in sizes:
                begun_s = time.monotonic()
                query = "SELECT pg_logical_emit_message(true, 'x', repeat('y', %s))"
                sql.execute(query, (size,))
                assert time.monotonic() - begun_s < PAUSE_S_MAX, size
        cluster.proposer.terminate()
        done = walkeeper("detach", "--dsn", server.dsn())
        assert done.returncode == 0, done


def test_whom_the_system_trusts_is_trusted_by_both(
    server: TlsServer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    monkeypatch.setitem(server.given, "sslrootcert", "system")
    with Cluster.create(server):
        server.sql("CREATE TABLE t ()")
        done = walkeeper("detach", "--dsn", server.dsn())
        assert done.returncode == 0, done


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sslrootcert", "other.pem", "certificate verify failed"),
        ("sslrootcert", "none.pem", "none.pem"),
        ("sslcert", "none.pem", "none.pem|requires a valid client certificate"),  # libpq: without
        ("sslkey", "none.key", "none.key"),
        ("sslrootcert", "system", "certificate verify failed"),
        ("sslmode", "disable", "no pg_hba.conf entry"),
    ],
)
def test_a_certificates_error_is_reported(
    server: TlsServer, certificates: Path, name: str, value: str, said: str
) -> None:
    given = str(certificates / value) if "." in value else value
    dsn = server.dsn(**{name: given})
    nobody = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    for command in (("attach",), ("proposer", "--safekeepers", nobody)):
        done = walkeeper(*command, "--dsn", dsn)
        assert done.returncode == 1 and re.search(said, done.stderr), done
        assert "Traceback" not in done.stderr, done
