"""docker/: every service of compose.yaml starts, is healthy and does its part, and so does the
image.

Where a container engine answers, in it. The soak runs the image's pip step in an empty environment.
As root it also runs each service's command and healthcheck as processes (compose_services.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.chaos.namespaces import why_not
from tests.support.folders import ROOT
from tests.support.image_build import copied, install, instructions, pip_steps
from tests.support.postgres_server import make_directory
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.compose_services import (
    ASK_METRICS,
    DOCKER,
    ComposedServices,
    compose_document,
    passwords,
    read_services,
)
from walkeeper_common.operator_text.printable import in_one_line

pytestmark = pytest.mark.postgres

SAFEKEEPERS = ("safekeeper1", "safekeeper2", "safekeeper3")
DAEMONS = (*SAFEKEEPERS, "proposer")
ENGINE_S = 20
ARCHIVED_S = 60
THERE = "SELECT count(*) FROM pg_class WHERE relname = 't'"


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Where the image's pip step has put `walkeeper`."""
    directory = make_directory("walkeeper_image_")
    try:
        yield install(directory)
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def composed(programs: Path) -> Iterator[ComposedServices]:
    if reason := why_not():
        pytest.skip(reason)
    directory = make_directory("walkeeper_compose_")
    try:
        with ComposedServices.create(directory, str(programs)) as made:
            yield made
    finally:
        shutil.rmtree(directory)


@pytest.mark.soak
def test_the_images_pip_step_gives_a_command_that_runs(programs: Path) -> None:
    assert len(pip_steps()) == 1
    for name in ("--version", *(read_services()[s].command[0] for s in (*DAEMONS, "create"))):
        arguments = [name] if name.startswith("-") else [name, "--help"]
        done = subprocess.run(
            [str(programs / "walkeeper"), *arguments],
            cwd="/",
            env={},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0 and "walkeeper" in done.stdout, done


def test_the_build_context_has_what_is_copied_and_little_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    admitted = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines and admitted == set(copied())
    assert all((ROOT / name).exists() for name in admitted)
    assert ("ENTRYPOINT", '["walkeeper"]') in instructions()


def test_every_service_that_stays_has_a_healthcheck_and_a_volume_of_its_own() -> None:
    services = read_services()
    assert set(services) == {"certs", "primary", *DAEMONS, "create", "attach", "standby"}
    lasting = [s for s in services.values() if s.healthcheck]
    assert {s.name for s in lasting} == {"primary", *DAEMONS, "standby"}
    made = {source for source, _ in services.pop("certs").volumes if source[0] != "."}
    volumes = [source for s in services.values() for source, _ in s.volumes if source[0] != "."]
    own = {"ca", "monitor"}
    assert made - set(volumes) == own, "no other service has the key of the authority"
    assert sorted({*volumes, *own}) == sorted(compose_document()["volumes"])
    assert sorted(volumes) == sorted([*set(volumes), "archive", "archive"]), "one for all three"
    keepers = [services[name] for name in SAFEKEEPERS]
    assert {s.environment["WALKEEPER_ARCHIVE"] for s in keepers} == {"/srv/archive"}
    for files in (s.volumes for s in services.values()):
        assert all((DOCKER / source).is_file() for source, _ in files if source[0] == ".")


def test_no_safekeeper_admits_a_peer_without_a_certificate() -> None:
    services = read_services()
    for name in SAFEKEEPERS:
        assert "--require-tls" in services[name].command
        assert services[name].environment["WALKEEPER_TLS"] == "/srv/tls/tls.pem"
        assert (f"tls_{name}", "/srv/tls") in services[name].volumes
    for service in services.values():
        assert "--allow-unauthenticated" not in service.command
    assert len(passwords()) == 2, "no password has a default"


def test_the_http_of_each_daemon_is_for_the_network_and_needs_the_token() -> None:
    services = read_services()
    for name in DAEMONS:
        words = services[name].command
        assert words[words.index("--http") + 1] == "0.0.0.0:7676"
        assert words[words.index("--http-token") + 1] == "/srv/tls/http-token"
        assert services[name].healthcheck[-1].count("127.0.0.1:7676/ready") == 1
    assert "install -m 644" in (DOCKER / "certs.sh").read_text(), "Prometheus is another user"


def test_no_word_of_a_healthcheck_has_a_blank() -> None:
    """Podman 4 joins a check from the Docker API and splits it at blanks: none was ever healthy."""
    checks = [
        d["healthcheck"]["test"]
        for d in compose_document()["services"].values()
        if "healthcheck" in d
    ]
    assert len(checks) == 6
    words = [word for check in checks if check[0] == "CMD" for word in check]
    assert not [word for word in words if word.split() != [word]]


@pytest.mark.soak
def test_the_image_speaks_to_object_stores_and_packs(programs: Path) -> None:
    """Without the extra, both would be refused at the first start with --archive s3://…."""
    code = "import obstore.store, zstandard; obstore.store.from_url('s3://bucket/x', region='a')"
    done = subprocess.run(
        [str(programs / "python"), "-c", code], capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done


@pytest.mark.soak
def test_the_services_make_a_primary_whose_commits_wait_and_a_standby_that_has_them(
    composed: ComposedServices,
) -> None:
    composed.up()
    primary = composed["primary"]
    assert sql(composed, "primary", "SHOW synchronous_standby_names") == "FIRST 1 (walkeeper)"
    sql(composed, "primary", "CREATE TABLE t AS SELECT 1 AS i")
    wait_until(lambda: sql(composed, "standby", THERE) == "1")
    sender = sql(composed, "standby", "SELECT sender_host FROM pg_stat_wal_receiver")
    assert sender.startswith("safekeeper"), sender
    for service in DAEMONS:
        assert metrics(composed, service, "wrong") == 401
        assert metrics(composed, service, token(composed, service)) == 200
    before = token(composed, "proposer")
    composed["certs"].start()
    composed["certs"].wait_completed()
    assert token(composed, "proposer") == before, "each start would shut Prometheus out"
    composed["create"].start()
    composed["create"].wait_completed()
    assert "exists and is in use" in composed["create"].output()
    assert composed["safekeeper1"].stop() == 0
    assert not composed["safekeeper1"].is_healthy()
    sql(composed, "primary", "INSERT INTO t VALUES (2)")
    composed["safekeeper1"].start()
    composed["safekeeper1"].wait_healthy()
    assert composed["proposer"].stop() == 0 and primary.is_healthy()
    composed["proposer"].start()
    composed["proposer"].wait_healthy()
    sql(composed, "primary", "INSERT INTO t VALUES (3)")
    wait_until(lambda: sql(composed, "standby", "SELECT sum(i) FROM t") == "6")
    sql(composed, "primary", "SELECT pg_switch_wal()")
    sql(composed, "primary", "INSERT INTO t VALUES (4)")
    wait_until(lambda: re.search(r"\([1-9]\d* segments", archive(composed, "ls")), ARCHIVED_S)
    assert archive(composed, "verify", "--quiet") == ""


def token(composed: ComposedServices, service: str) -> str:
    return composed[service].execute("cat", "/srv/tls/http-token").stdout.strip()


def metrics(composed: ComposedServices, service: str, given: str) -> int:
    """Return the status of a daemon's /metrics for a client on another machine."""
    asking = "safekeeper1" if service != "safekeeper1" else "safekeeper2"
    done = composed[asking].execute("python", "-c", ASK_METRICS, service, given)
    assert done.returncode == 0, done
    return int(done.stdout)


def archive(composed: ComposedServices, what: str, *flags: str) -> str:
    """Run `walkeeper archive` in a service that has the safekeepers' volume."""
    done = composed["safekeeper2"].execute("walkeeper", "archive", what, "/srv/archive", *flags)
    assert done.returncode == 0 or what == "ls", done
    return done.stdout


def sql(composed: ComposedServices, service: str, statement: str) -> str:
    """Run a query by psql in that service, as its superuser."""
    arguments = ("psql", "-U", "postgres", "-d", "postgres", "-XAt", "-v", "ON_ERROR_STOP=1", "-c")
    done = composed[service].execute(*arguments, statement)
    assert done.returncode == 0, done
    return done.stdout.strip()


def engine_is_missing() -> str | None:
    """Return why no container can run here, or None."""
    if not shutil.which("docker"):
        return "no container engine: there is no `docker` command"
    done = subprocess.run(
        ["docker", "compose", "ls"], capture_output=True, text=True, timeout=ENGINE_S
    )
    said = in_one_line(done.stderr)
    return f"no container engine answers: {said}" if done.returncode else None


def test_compose_up_in_a_container_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := engine_is_missing():
        pytest.skip(reason)
    from testcontainers.compose import DockerCompose

    monkeypatch.setenv("POSTGRES_PORT", "0")  # any: the usual one may be taken here
    for name, value in passwords().items():
        monkeypatch.setenv(name, value)
    with DockerCompose(str(DOCKER), "compose.yaml", build=True, wait=True) as engine:

        def ask(service: str, statement: str) -> str:
            psql = ["psql", "-h", "127.0.0.1", "-U", "postgres", "-XAt", "-c", statement]
            return engine.exec_in_container(psql, service)[0].strip()

        assert ask("primary", "SHOW synchronous_standby_names") == "FIRST 1 (walkeeper)"
        ask("primary", "CREATE TABLE t AS SELECT 1 AS i")
        wait_until(lambda: ask("standby", THERE) == "1", ENGINE_S)
        sender = ask("standby", "SELECT sender_host FROM pg_stat_wal_receiver")
        assert sender.startswith("safekeeper"), sender
