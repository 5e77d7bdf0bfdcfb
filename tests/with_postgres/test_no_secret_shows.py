"""A whole run with a secret in each place that takes one: what others can read shows none of them.

Read are the logs at DEBUG, the output of commands, all that --http answers, and the command line of
every process. The kernel shows an environment to its owner alone, so that is where secrets are.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.cluster import WALKEEPER, Daemon
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.tls_cluster import TlsCluster
from tests.support.waiting import LIMIT_S, wait_until
from tests.tls_files import TlsFiles
from tests.with_postgres.test_passwords import HBA
from tests.with_postgres.test_tls_clients import psql
from walkeeper_cli.certs.authority import CA_KEY
from walkeeper_cli.users.writing import add_user, verifier_of
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import User
from walkeeper_lab.local.tcp_ports import free_port

pytestmark = pytest.mark.postgres

PAGES = ("/status", "/metrics", "/ready", "/health", "/")
ARCHIVE_FAILS = "cannot archive: "
# The run has to bring these texts: an empty one has no secret either.
EXPECTED = {
    "command lines": "walkeeper_cli proposer",
    "psql": "password authentication failed",
    "status": "safekeeper",
    "attach with a wrong DSN": "password authentication failed",
    "attach with a broken DSN": "percent",
    "user": "standby1",
    "the log of safekeeper1": "https://***@",
    "the log of safekeeper2": "s3://wal/prefix",
    "the log of safekeeper3": "az://wal/prefix?***",
    "the log of proposer": "Fatal Python error: Aborted",
}
NOWHERE = "127.0.0.1:1"  # an archive's server that never answers


class Secrets:
    """All secrets of the run, by name; each is a text that occurs nowhere by chance."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

    def new(self, name: str, prefix: str = "") -> str:
        """Make a secret; its text needs escapes in a URL, a connection string and JSON."""
        return self.note(name, f"{prefix}S/{secrets.token_hex(9)}+é=")

    def note(self, name: str, text: str) -> str:
        assert len(text) >= 16, f"{name} may occur by chance"
        self.by_name[name] = text
        return text

    def shown_in(self, text: str) -> list[str]:
        """Return the names of the secrets that the text shows, also in another encoding."""
        return [
            name
            for name, secret in self.by_name.items()
            if any(form in text for form in forms_of(secret))
        ]


def forms_of(secret: str) -> set[str]:
    """Return the forms in which a message, a URL, JSON or a header may have it."""
    encoded = base64.b64encode(secret.encode()).decode()
    plain = {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], encoded}
    return plain | {repr(secret)[1:-1], ascii(secret)[1:-1], secret.encode().hex()}


def test_a_secret_is_found_in_each_of_its_forms() -> None:
    """The search itself is able to fail."""
    known = Secrets()
    secret = known.new("password")
    for form in forms_of(secret):
        assert known.shown_in(f"a line with {form} in it") == ["password"], form
    assert len(forms_of(secret)) >= 5 and known.shown_in("a line without it") == []


class GuardedCluster(TlsCluster):
    """Its daemons get each kind of secret by a file or by their environment."""

    known: Secrets
    directory_of_secrets: Path

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        files = self.directory_of_secrets
        more = ["--users", str(files / "users"), "--archive-keys", str(files / "archive-keys")]
        more += ["--archive-tail-interval", "1s", *(["--log-json"] if number == 2 else [])]
        return self._with_http(made, *more, environment=self._archive_of(number))

    def new_proposer(
        self, name: str, *options: str, dsn: str | None = None, cluster: str | None = None
    ) -> Daemon:
        made = super().new_proposer(name, *options, dsn=dsn, cluster=cluster)
        words = list(made.arguments)
        at = words.index("--dsn")
        made.arguments = (*words[:at], *words[at + 2 :])
        environment = {"WALKEEPER_DSN": self.dsn_with_password(), "PYTHONFAULTHANDLER": "1"}
        self.proposers[-1] = self._with_http(made, environment=environment)
        return self.proposers[-1]

    def dsn_with_password(self, name: str = "password of the DSN") -> str:
        password = quote(self.known.by_name[name], safe="")
        return f"postgresql://keeper:{password}@127.0.0.1:{self.primary.port}/postgres"

    def _with_http(self, made: Daemon, *options: str, environment: Mapping[str, str]) -> Daemon:
        """Return the daemon as a process of its own, whose command line `ps` shows."""
        self.http_ports = [*getattr(self, "http_ports", []), free_port()]
        token = str(self.directory_of_secrets / "token")
        more = ("--http", f"127.0.0.1:{self.http_ports[-1]}", "--http-token", token)
        words = (*made.arguments, *options, *more, "--log-level", "debug")
        return Daemon(made.name, words, made.log, prefix=("env",), environment=environment)

    def _archive_of(self, number: int) -> dict[str, str]:
        """Return the archive of a safekeeper: each has a store of another kind."""
        known = {name: quote(text, safe="") for name, text in self.known.by_name.items()}
        return {
            1: {
                "WALKEEPER_ARCHIVE": f"https://reader:{known['password of the URL']}@{NOWHERE}/wal"
                f"?sig={known['SAS token of the URL']}"
            },
            2: {
                "WALKEEPER_ARCHIVE": "s3://wal/prefix",
                "AWS_ACCESS_KEY_ID": "reader",
                "AWS_SECRET_ACCESS_KEY": self.known.by_name["S3 secret"],
                "AWS_SESSION_TOKEN": self.known.by_name["S3 session"],
                "AWS_ENDPOINT_URL": f"http://{NOWHERE}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "nowhere",
            },
            3: {
                "WALKEEPER_ARCHIVE": f"az://wal/prefix?sig={known['SAS token of az']}",
                "AZURE_STORAGE_ACCOUNT_NAME": "reader",
                "AZURE_STORAGE_SAS_TOKEN": f"sig={known['SAS token of az']}",
                "AZURE_STORAGE_ENDPOINT": f"http://{NOWHERE}",
                "AZURE_ALLOW_HTTP": "true",
            },
        }[number]


@pytest.fixture
def known(tmp_path: Path) -> Secrets:
    """Make the secrets, and the files that have some of them."""
    made = Secrets()
    for name in ("DSN", "URL", "standby1"):
        made.new(f"password of the {name}".replace("the standby1", "standby1"))
    for name in ("S3 secret", "S3 session", "wrong password"):
        made.new(name)
    for name in ("URL", "az"):
        made.new(f"SAS token of {'the ' * (name == 'URL')}{name}", "sv=2&sig=")
    token = made.note("HTTP token", secrets.token_hex(24))
    made.note("wrong HTTP token", secrets.token_hex(24))
    key = made.note("archive key", secrets.token_hex(32))
    for name, text in (("token", f"{token}\n"), ("archive-keys", f"key1 {key}\n")):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    verifier = verifier_of("standby1", made.by_name["password of standby1"])
    made.note("verifier", str(verifier).rpartition("$")[2])
    add_user(
        str(tmp_path / "users"),
        User("standby1", verifier, frozenset((Role.REPLICA,))),
        replaces=False,
    )
    return made


@pytest.fixture
def cluster(known: Secrets, tmp_path: Path) -> Iterator[GuardedCluster]:
    files = TlsFiles(tmp_path / "tls")
    GuardedCluster.known, GuardedCluster.directory_of_secrets = known, tmp_path
    with PostgresServer.create() as server:
        password = known.by_name["password of the DSN"]
        server.sql(f"CREATE ROLE keeper SUPERUSER REPLICATION LOGIN PASSWORD '{password}'")
        (server.data / "pg_hba.conf").write_text(
            f"{HBA}host replication postgres 127.0.0.1/32 trust\n"
        )
        server.reload()
        with GuardedCluster.with_files(server, files) as made:
            yield made


def key_texts(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the whole lines of each private key below a directory."""
    for path in (*directory.rglob("*.pem"), *directory.rglob(CA_KEY)):
        keys = re.findall("BEGIN PRIVATE KEY-----(.*?)-----END", path.read_text(), re.DOTALL)
        for at, line in enumerate("".join(keys).split()):
            if len(line) >= 16:
                yield f"key of {path.name}, line {at}", line


def command_lines() -> str:
    """Return the command line of each process of this machine, as `ps` shows them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace").replace("\0", " "))
        except OSError:
            continue  # it has ended
    return "\n".join(found)


def fetched(port: int, path: str, token: str | None) -> str:
    """Return what --http answers, its head included."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"


def said_by(cluster: GuardedCluster, dsn: str, *words: str) -> str:
    """Run a command that has the DSN in its environment; return all of its output."""
    done = subprocess.run(
        [*WALKEEPER, "--log-level", "debug", *words],
        env={**server_environment(), "WALKEEPER_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return done.stdout + done.stderr


def output_of_commands(cluster: GuardedCluster, files: Path) -> dict[str, str]:
    """Run commands that succeed and commands that fail; return their outputs by name."""
    at = ("--safekeepers", cluster.addresses, "--tls", cluster.files.path(Role.ADMIN, "alice"))
    right, wrong = (
        cluster.dsn_with_password(name) for name in ("password of the DSN", "wrong password")
    )
    broken = right.replace("%2F", "%zz")
    said = {
        "status": said_by(cluster, right, "status", *at),
        "status --json": said_by(cluster, right, "status", "--json", *at),
        "check": said_by(cluster, right, "check", "--archive-wait", "1s", *at),
        "slots": said_by(cluster, right, "slots", "ls", *at),
        "user": said_by(cluster, right, "user", "ls", "--users", str(files / "users")),
        "certs": said_by(cluster, right, "certs", "show", at[-1]),
    }
    for name, dsn in (("a wrong", wrong), ("a broken", broken)):
        said[f"attach with {name} DSN"] = said_by(cluster, dsn, "attach")
        said[f"status with {name} DSN"] = said_by(cluster, dsn, "status", *at)
    return said


def logins(cluster: GuardedCluster, passfile: Path) -> str:
    """Log in with the right password and with a wrong one; return what psql says."""
    none = {"sslcert": "/none", "sslkey": "/none", "replication": "true", "dbname": "replication"}
    files = {"sslrootcert": cluster.files.path(Role.SAFEKEEPER, "1"), "passfile": str(passfile)}
    said = ""
    for name in ("password of standby1", "wrong password"):
        passfile.touch(mode=0o600)
        passfile.write_text(f"*:*:*:standby1:{cluster.known.by_name[name]}\n")
        dsn = cluster.libpq(1, Role.REPLICA, "standby1", **none, **files)
        done = psql(dsn, "IDENTIFY_SYSTEM")
        said += done.stdout + done.stderr
    return said


def wait_for_text(daemon: Daemon, text: str, times: int) -> None:
    wait_until(lambda: daemon.output().count(text) >= times)


def break_files(cluster: GuardedCluster, files: Path) -> None:
    """Put a line into each file with secrets that it may not have, and let the daemons see it."""
    daemons = (*cluster.safekeepers, cluster.proposer)
    tls = [cluster.files.path(Role.SAFEKEEPER, str(number)) for number in (1, 2, 3)]
    for path in (str(files / "users"), str(files / "token"), *tls):
        text = Path(path).read_text()
        Path(path).write_text(text.replace("-----END PRIVATE", "----END") + f'"{text}\n\n"')
    for daemon in daemons:
        daemon.signal(signal.SIGHUP)
    for daemon in cluster.safekeepers:
        wait_for_text(daemon, "stays in use", 3)


def test_a_whole_run_shows_no_secret(
    cluster: GuardedCluster, known: Secrets, tmp_path: Path
) -> None:
    for name, line in key_texts(tmp_path / "tls"):
        known.note(name, line)
    seen = {"command lines at the start": command_lines()}
    right, wrong = known.by_name["HTTP token"], known.by_name["wrong HTTP token"]
    with Journal(cluster.primary) as journal:
        cluster.primary.sql("SELECT pg_switch_wal()")
        journal.wait_for_more(50)
        seen["psql"] = logins(cluster, tmp_path / "pgpass")
        for port in cluster.http_ports:
            for path in PAGES:
                for token in (None, wrong, right):
                    seen[f"{path} of {port} {token is right}"] = fetched(port, path, token)
        seen |= output_of_commands(cluster, tmp_path)
        for safekeeper in cluster.safekeepers:
            wait_for_text(safekeeper, ARCHIVE_FAILS, 1)
    seen["command lines"] = command_lines()
    break_files(cluster, tmp_path)
    cluster.proposer.signal(signal.SIGABRT)
    cluster.proposer.ended()
    for daemon in (*cluster.safekeepers, cluster.proposer):
        seen[f"the log of {daemon.name}"] = daemon.log.read_text()

    shown = {where: found for where, text in seen.items() if (found := known.shown_in(text))}
    assert not shown
    for where, expected in EXPECTED.items():
        assert expected in seen[where], (where, seen[where][-2000:])
