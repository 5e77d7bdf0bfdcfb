"""Run docker/compose.yaml in a container engine and kill its parts: `make containers`.

    python -m tests.containers [--build]        one line for each step, with its time

One client commits all the time. At the end each acknowledged row is on the primary, and on a
standby that is promoted after the primary's loss. The daemons run on a read-only root, without
capabilities and with the memory that docs/containers.md states. Exit status: 0, 1 if a step failed,
77 if no engine answers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import yaml

from tests.support.waiting import wait_until
from tests.with_postgres.compose_services import (
    ASK_METRICS,
    DOCKER,
    PASSWORD,
    compose_document,
    passwords,
)
from walkeeper_common.operator_text.printable import in_one_line

PROJECT = "walkeeper-play"
# An engine without CAP_SYS_RESOURCE refuses limits above those of its own process.
LIMITS = {"nofile": {"soft": 1024, "hard": 4096}, "nproc": {"soft": 1024, "hard": 2048}}
STEP_S, UP_S = 90.0, 300.0
COMMITS_A_STEP = 20
SKIPPED = 77
SAFEKEEPERS = ("safekeeper1", "safekeeper2", "safekeeper3")


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def memory_mb(service: str) -> int:
    """Return the limit that docs/containers.md states."""
    return 192 if service == "proposer" else 128


def strict() -> dict[str, object]:
    """Return the compose file that narrows each service."""
    services: dict[str, dict[str, object]] = {}
    for name in compose_document()["services"]:
        services[name] = {"ulimits": LIMITS}
        if name == "proposer" or name.startswith("safekeeper"):
            memory = f"{memory_mb(name)}m"
            services[name] |= {"read_only": True, "cap_drop": ["ALL"], "mem_limit": memory}
    return {"services": services}


class Composed:
    """The project, by the compose command."""

    def __init__(self, override: Path) -> None:
        files = ("-f", str(DOCKER / "compose.yaml"), "-f", str(override))
        self._words = ("docker", "compose", "-p", PROJECT, *files)

    def __call__(self, *words: str, timeout_s: float = STEP_S) -> str:
        return run(*self._words, *words, timeout_s=timeout_s)

    def container(self, service: str) -> str:
        return self("ps", "-a", "-q", service).strip()

    def sql(self, service: str, statement: str) -> str:
        psql = ("psql", "-h", "127.0.0.1", "-U", "postgres", "-XAt", "-c", statement)
        return self("exec", "-T", service, "env", f"PGPASSWORD={PASSWORD}", *psql).strip()

    def start(self, service: str) -> None:
        run("docker", "start", self.container(service))

    def kill(self, service: str) -> None:
        run("docker", "kill", "-s", "KILL", self.container(service))

    def is_healthy(self, service: str) -> bool:
        return self.inspect(service, "{{.State.Health.Status}}") == "healthy"

    def inspect(self, service: str, form: str) -> str:
        return run("docker", "inspect", "-f", form, self.container(service)).strip()


def run(*words: str, timeout_s: float = STEP_S) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


class Client:
    """A thread that commits rows and notes those that were acknowledged."""

    def __init__(self, composed: Composed) -> None:
        self._composed, self._stopping = composed, threading.Event()
        self.acknowledged: list[int] = []
        self._next = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STEP_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(psycopg.Error, AssertionError, subprocess.TimeoutExpired):
                self._commit_until_it_fails()
            self._stopping.wait(0.2)

    def _commit_until_it_fails(self) -> None:
        host, _, port = self._composed("port", "primary", "5432").strip().rpartition(":")
        where = f"host={host} port={port} user=postgres password={PASSWORD}"
        with psycopg.connect(where, autocommit=True, connect_timeout=3) as connection:
            while not self._stopping.is_set():
                self._next += 1
                connection.execute("INSERT INTO play VALUES (%s)", (self._next,))
                self.acknowledged.append(self._next)

    def wait_for_more(self) -> None:
        goal = len(self.acknowledged) + COMMITS_A_STEP
        wait_until(lambda: len(self.acknowledged) >= goal, STEP_S)


class Play:
    """The steps, in their order."""

    def __init__(self, composed: Composed) -> None:
        self._composed = composed

    def step(self, text: str, action: Callable[[], object]) -> None:
        begun = time.monotonic()
        action()
        tell(f"{time.monotonic() - begun:6.1f} s  {text}")

    def run(self, *, build: bool) -> None:
        composed = self._composed
        up = ("up", "--build" if build else "--no-build", "--wait")
        self.step("every service is healthy", lambda: composed(*up, timeout_s=UP_S))
        assert composed.sql("primary", "SHOW synchronous_standby_names") == "FIRST 1 (walkeeper)"
        for service in ("proposer", *SAFEKEEPERS):
            narrowed = composed.inspect(
                service, "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Memory}}"
            )
            assert narrowed == f"true {memory_mb(service) << 20}", narrowed
        self.step("metrics of every daemon, by the token alone", self._scraped)
        composed.sql("primary", "CREATE TABLE play (i int PRIMARY KEY)")
        with Client(composed) as client:
            self.step("commits", client.wait_for_more)
            for service in ("safekeeper1", "proposer", "primary"):
                killed = partial(self._killed, service, client)
                self.step(f"{service} killed and started", killed)
            self.step("safekeeper2 without a network", lambda: self._parted(client))
            client.stop()
            self.step("all containers removed and made again", lambda: self._again(up))
            self.step("the standby promoted, the primary lost", lambda: self._promoted(client))
        tell(f"{len(client.acknowledged)} acknowledged rows, all found")

    def _scraped(self) -> None:
        token = self._composed("exec", "-T", "proposer", "cat", "/srv/tls/http-token").strip()
        for service in (*SAFEKEEPERS, "proposer"):
            asking = "proposer" if service != "proposer" else SAFEKEEPERS[0]
            for given, expected in ((token, "200"), ("wrong", "401")):
                words = ("python", "-c", ASK_METRICS, service, given)
                assert self._composed("exec", "-T", asking, *words).strip() == expected, service

    def _killed(self, service: str, client: Client) -> None:
        composed = self._composed
        composed.kill(service)
        if service == "safekeeper1":
            client.wait_for_more()
        composed.start(service)
        wait_until(lambda: composed.is_healthy(service), STEP_S)
        client.wait_for_more()

    def _parted(self, client: Client) -> None:
        where = (f"{PROJECT}_default", self._composed.container("safekeeper2"))
        run("docker", "network", "disconnect", *where)
        client.wait_for_more()
        run("docker", "network", "connect", "--alias", "safekeeper2", *where)
        client.wait_for_more()

    def _again(self, up: tuple[str, ...]) -> None:
        self._composed("down", timeout_s=UP_S)
        self._composed("up", "--no-build", *up[2:], timeout_s=UP_S)

    def _promoted(self, client: Client) -> None:
        composed = self._composed
        self._expect(client, "primary")
        composed.kill("primary")
        settle = (
            "settle",
            "--seal",
            "--safekeepers",
            ",".join(f"{name}:5454" for name in SAFEKEEPERS),
        )
        composed("stop", "proposer")
        composed("run", "--rm", "--no-deps", "status", *settle)
        wait_until(lambda: self._found("standby") >= set(client.acknowledged), STEP_S)
        composed.sql("standby", "SELECT pg_promote()")
        self._expect(client, "standby")

    def _found(self, service: str) -> set[int]:
        return {int(row) for row in self._composed.sql(service, "SELECT i FROM play").split()}

    def _expect(self, client: Client, service: str) -> None:
        lost = set(client.acknowledged) - self._found(service)
        assert not lost, f"{service} has lost {sorted(lost)}"


def engine_is_missing() -> str | None:
    """Return the reason why no container can run here, or None."""
    try:
        run("docker", "compose", "version")
        run("docker", "ps")
    except (OSError, AssertionError, subprocess.TimeoutExpired) as error:
        return in_one_line(error)
    return None


@contextlib.contextmanager
def project() -> Iterator[Composed]:
    """Give the project; remove its containers, networks and volumes in the end."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_play_") as name:
        override = Path(name) / "strict.yaml"
        override.write_text(yaml.safe_dump(strict()))
        os.environ.update(passwords())
        composed = Composed(override)
        try:
            yield composed
        finally:
            composed("down", "--volumes", "--timeout", "1", timeout_s=UP_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.containers")
    parser.add_argument("--build", action="store_true", help="build the image first")
    options = parser.parse_args()
    if reason := engine_is_missing():
        tell(f"skipped: no container engine answers: {reason}; see docs/containers.md")
        return SKIPPED
    with project() as composed:
        Play(composed).run(build=options.build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
