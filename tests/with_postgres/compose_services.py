"""docker/compose.yaml's services as processes of this machine: for where no container engine is.

    with ComposedServices.create(directory, image_path) as composed:
        composed.up()                               in the order of depends_on, each until healthy
        composed["primary"].execute("psql", …)      as `docker compose exec`

A service gets what its container would: arguments, environment, user, volumes and files of
compose.yaml, the other services' names in /etc/hosts, and its own ports. A network and a mount
namespace give each these, so compose.yaml is used as it is. The walkeeper image's programs are
those that its pip step has installed. For the postgres image, this machine's server runs. Its
entrypoint does the documented steps in an empty data directory. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.proof.chaos.namespaces import Network, Node
from tests.support.folders import ROOT
from tests.support.postgres_server import binary_directory
from tests.support.waiting import wait_until

DOCKER = ROOT / "docker"
DEFAULTED = re.compile(r"\$\{\w+:-([^}]*)\}")
DEMANDED = re.compile(r"\$\{(\w+):\?[^}]*\}")
PASSWORD = "made_for_tests"
HEALTHY_S = 60.0
PROGRAM_S = 60.0
# A client of --http: the host and the token are its arguments, and it prints the status.
ASK_METRICS = """
import sys, urllib.error, urllib.request
asked = urllib.request.Request(f"http://{sys.argv[1]}:7676/metrics")
asked.add_header("Authorization", f"Bearer {sys.argv[2]}")
try:
    print(urllib.request.urlopen(asked, timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
INIT_SCRIPTS = "/docker-entrypoint-initdb.d"
# Here nothing can be mounted on what does not exist; /srv and /var/lib do, and are ours to cover.
INIT_SCRIPTS_HERE = "/srv/initdb.d"
WALKEEPER_USER = "10001"
# A new volume is as the image's directory is; where the image has none, it is root's. These are in
# the postgres images of all versions (/var/lib/postgresql/data only before 18) and in ours.
OWNED = ("/var/lib/postgresql", "/var/lib/walkeeper", "/srv/archive")
# The process that this shell becomes sees its own /var/lib, /srv and socket directory.
CONTAIN = """
mount --bind "$1" /etc/hosts
shift
mount -t tmpfs none /var/lib
mount -t tmpfs none /srv
mount -t tmpfs -o mode=1777 none /run/postgresql
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "${2%/*}"; : > "$2"; fi
    mount --bind "$1" "$2"
    shift 2
done
shift
exec "$@"
"""
# The steps of the postgres image before it becomes the command (its docker-entrypoint.sh).
POSTGRES_ENTRYPOINT = f"""
initdb -U postgres --no-sync --pwfile=<(echo "$POSTGRES_PASSWORD")
echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
pg_ctl -w -o "-c listen_addresses=''" start
for script in {INIT_SCRIPTS_HERE}/*; do bash "$script"; done
pg_ctl -w -m fast stop
echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
exec "$@"
"""


def compose_document() -> dict[str, Any]:
    """Return compose.yaml with the defaults of its variables, and a password where it has none."""
    text = DEFAULTED.sub(r"\1", (DOCKER / "compose.yaml").read_text())
    document: dict[str, Any] = yaml.safe_load(DEMANDED.sub(PASSWORD, text))
    return document


def passwords() -> dict[str, str]:
    """Return the variables that compose.yaml demands."""
    return dict.fromkeys(DEMANDED.findall((DOCKER / "compose.yaml").read_text()), PASSWORD)


@dataclass(frozen=True, slots=True)
class Service:
    """One service as compose.yaml has it."""

    name: str
    image: str
    user: str | None
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: tuple[tuple[str, str], ...]
    healthcheck: tuple[str, ...]
    depends_on: Mapping[str, str]

    @property
    def is_walkeeper(self) -> bool:
        return self.image == "walkeeper"


def read_services() -> dict[str, Service]:
    """Return the services that `up` starts, each after those that it depends on."""
    document = compose_document()["services"]
    services = {name: _service(name, d) for name, d in document.items() if "profiles" not in d}
    ordered: dict[str, Service] = {}
    while len(ordered) < len(services):
        ready = [
            s
            for s in services.values()
            if s.name not in ordered and set(s.depends_on) <= set(ordered)
        ]
        assert ready, "depends_on is a circle"
        ordered.update({service.name: service for service in ready})
    return ordered


def _service(name: str, described: Mapping[str, Any]) -> Service:
    check = described.get("healthcheck", {}).get("test", ["CMD"])
    return Service(
        name=name,
        image=described["image"],
        user=described.get("user"),
        entrypoint=tuple(described.get("entrypoint", ())),
        command=tuple(described["command"]),
        environment={key: str(value) for key, value in described["environment"].items()},
        volumes=tuple(
            (source, target)
            for source, target in (v.split(":")[:2] for v in described.get("volumes", ()))
        ),
        healthcheck=tuple(check[1:]) if check[0] == "CMD" else ("/bin/sh", "-c", check[1]),
        depends_on={n: d["condition"] for n, d in described.get("depends_on", {}).items()},
    )


class ServiceProcess:
    """A service in its two namespaces."""

    def __init__(self, service: Service, node: Node, directory: Path, image_path: str) -> None:
        self.service, self._node, self._directory = service, node, directory
        self._log = directory / f"{service.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        if service.is_walkeeper:
            user, image = WALKEEPER_USER, {"PATH": f"{image_path}:/usr/bin:/bin"}
        else:
            # PGDATA too, but where it is depends on the version.
            user, image = "postgres", {"PATH": f"{binary_directory()}:/usr/bin:/bin"}
        self._user = service.user or user
        self._environment = {**image, **service.environment}

    def start(self) -> None:
        """Start its entrypoint with its command."""
        service = self.service
        entrypoint = service.entrypoint
        if service.is_walkeeper:
            entrypoint = entrypoint or ("walkeeper",)
        elif not entrypoint:
            entrypoint = ("bash", "-euo", "pipefail", "-c", POSTGRES_ENTRYPOINT, "entrypoint")
        contain = ("unshare", "--mount", "--propagation", "private", "--", "bash", "-euc", CONTAIN)
        hosts = str(self._directory / "hosts")
        before = (*self._node.prefix, *contain, "contain", hosts, *self._mounts(), "--")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*before, *self._as_user(), *entrypoint, *service.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def _mounts(self) -> list[str]:
        """Return source and target of each volume: a directory of ours, or a file of docker/."""
        words = []
        for source, target in self.service.volumes:
            if source.startswith("."):
                where = DOCKER / source
            else:
                where = self._directory / "volumes" / source
                where.mkdir(parents=True, exist_ok=True)
                if target in OWNED:
                    subprocess.run(["chown", self._user, str(where)], check=True)
            words += [str(where), target.replace(INIT_SCRIPTS, INIT_SCRIPTS_HERE)]
        return words

    def _as_user(self) -> list[str]:
        user = ("--reuid", self._user, "--regid", self._user, "--clear-groups")
        variables = (f"{name}={value}" for name, value in self._environment.items())
        return ["setpriv", *user, "env", "-i", *variables]

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the service's place, as its user."""
        inside = ("nsenter", "--target", str(self.pid), "--mount", "--net", "--")
        return subprocess.run(
            [*inside, *self._as_user(), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, self.service.name
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_healthy(self) -> bool:
        """Return True if its healthcheck passes now."""
        return self.is_running and self.execute(*self.service.healthcheck).returncode == 0

    def wait_healthy(self) -> None:
        def healthy() -> bool:
            assert self.is_running, f"{self.service.name} ended: {self.output()}"
            return self.is_healthy()

        wait_until(healthy, HEALTHY_S)

    def wait_completed(self) -> None:
        assert self._process is not None, self.service.name
        code = self._process.wait(HEALTHY_S)
        assert code == 0, f"{self.service.name}: {code}: {self.output()}"

    def stop(self) -> int:
        """Stop it as `docker compose stop` does, by SIGTERM; return the exit code."""
        assert self._process is not None, self.service.name
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(HEALTHY_S)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def output(self) -> str:
        return self._log.read_text(errors="replace")


class ComposedServices:
    """All of them on one network. `create` is the way in."""

    def __init__(self, network: Network, directory: Path, image_path: str) -> None:
        services = read_services()
        names = [f"{network[name].address} {name}\n" for name in services]
        (directory / "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        self._processes = {
            name: ServiceProcess(service, network[name], directory, image_path)
            for name, service in services.items()
        }

    @classmethod
    @contextlib.contextmanager
    def create(cls, directory: Path, image_path: str) -> Iterator[ComposedServices]:
        """Make the services; the image's pip step has put `walkeeper` into `image_path`."""
        with Network.create(tuple(read_services())) as network:
            made = cls(network, directory, image_path)
            try:
                yield made
            finally:
                made.close()

    def close(self) -> None:
        """Kill each one; their children end with their namespaces."""
        for process in self._processes.values():
            process.kill()

    def __getitem__(self, name: str) -> ServiceProcess:
        return self._processes[name]

    def up(self, names: Sequence[str] = ()) -> None:
        """Start each when its depends_on allows; at the end all are healthy or done."""
        for name, process in self._processes.items():
            if names and name not in names:
                continue
            for needed, condition in process.service.depends_on.items():
                self._wait(needed, condition)
            process.start()
        for name, process in self._processes.items():
            completes = not process.service.healthcheck
            self._wait(name, "service_completed_successfully" if completes else "service_healthy")

    def _wait(self, name: str, condition: str) -> None:
        if condition == "service_healthy":
            self[name].wait_healthy()
        else:
            assert condition == "service_completed_successfully", condition
            self[name].wait_completed()
