"""Make a container engine on a Debian machine without one, and run a command with it.

    python3 .ci/engine.py [--trees build/deb] [--home build/engine] -- COMMAND…

For root, where apt reaches Debian. Podman with runc gives the Docker API, and Debian 13 has the
docker command with its compose plugin. No registry of images is needed: the base images of docker/
are trees of debootstrap, under the names that the Dockerfile and compose.yaml use. Without systemd
Podman runs no health check, so a loop here does.

Exit status: that of the command, or 77 with the reason if no engine can be made here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from deb import ROOT, made, run
from wheels import lend_index

SKIPPED = 77
PACKAGES = ("podman", "runc", "netavark", "aardvark-dns", "iptables", "debootstrap")
DOCKER_PACKAGES = ("docker-cli", "docker-compose")
PYTHON_IMAGE = "python:3.11-slim-bookworm"
POSTGRES = 17
CHECK_PAUSE_S = 2.0
UP_S = 60.0
# crun refuses hybrid cgroups. Limits above those of this process are refused without
# CAP_SYS_RESOURCE.
CONF = """[engine]
runtime = "runc"
[network]
network_backend = "netavark"
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:2048"]
"""
STORAGE = """[storage]
driver = "overlay"
graphroot = "{home}/storage"
runroot = "{home}/run"
"""
# The part of the postgres image's own entrypoint that compose.yaml uses.
ENTRYPOINT = """#!/bin/bash
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb -U postgres --pwfile=<(echo "$POSTGRES_PASSWORD") --auth-host=scram-sha-256 >/dev/null
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    pg_ctl -o "-c listen_addresses=''" -w start
    for file in /docker-entrypoint-initdb.d/*.sh; do bash "$file"; done
    pg_ctl -m fast -w stop
fi
exec "$@"
"""


def tell(text: str) -> None:
    sys.stdout.write(f"engine: {text}\n")
    sys.stdout.flush()


def why_not() -> str | None:
    """Return the reason why no engine can be made here, or None."""
    if os.geteuid():
        return "an engine needs root, or a docker command that answers"
    return None if shutil.which("apt-get") else "the packages of an engine need apt-get"


def install_packages() -> None:
    if not all(map(shutil.which, ("podman", "runc", "iptables", "debootstrap"))):
        tell(f"installing {' '.join(PACKAGES)}")
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-qq", "--no-install-recommends", *PACKAGES)


def docker_command(base: Path, home: Path) -> Path:
    """Return the folder with Debian 13's docker; compose is its plugin."""
    folder = home / "docker"
    if not folder.is_dir():
        new = home / "docker.new"
        shutil.rmtree(new, ignore_errors=True)
        inside = (
            f"cd /tmp && apt-get update -qq && apt-get download -qq {' '.join(DOCKER_PACKAGES)}"
        )
        run("chroot", base, "sh", "-c", inside, PATH="/usr/sbin:/usr/bin:/sbin:/bin")
        for name in DOCKER_PACKAGES:
            (package,) = (base / "tmp").glob(f"{name}_*.deb")
            run("dpkg-deb", "-x", package, new)
            package.unlink()
        (plugin,) = new.rglob("cli-plugins/docker-compose")
        (new / "config/cli-plugins").mkdir(parents=True)
        shutil.copy(plugin, new / "config/cli-plugins")
        new.rename(folder)
    return folder


def import_image(tree: Path, name: str, *changes: str) -> None:
    """Make an image of a tree, if there is none of this name."""
    if subprocess.run(["podman", "image", "exists", name]).returncode == 0:
        return
    tell(f"making the image {name}")
    given = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(
        ["tar", "-C", tree, "--exclude=./proc/*", "-c", "."], stdout=subprocess.PIPE
    ) as packed:
        command = ["podman", "import", "--quiet", *given, "-", name]
        subprocess.run(command, stdin=packed.stdout, check=True, stdout=subprocess.DEVNULL)


def make_images(trees: Path) -> None:
    python = made(trees / "bookworm/python", ("python3", "python3-pip"), trees / "bookworm/base")
    for file in python.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        file.unlink()  # as in the image python:*, whose pip owns its Python
    link = python / "usr/local/bin/python"
    if not link.is_symlink():
        link.symlink_to("/usr/bin/python3")
    lend_index(python)
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    import_image(python, f"docker.io/library/{PYTHON_IMAGE}", f"ENV {path}")
    server = made(
        trees / f"trixie/postgres{POSTGRES}",
        (f"postgresql-{POSTGRES}", "util-linux"),
        trees / "trixie/base",
    )
    entrypoint = server / "usr/local/bin/docker-entrypoint.sh"
    entrypoint.write_text(ENTRYPOINT)
    entrypoint.chmod(0o755)
    import_image(
        server,
        f"docker.io/library/postgres:{POSTGRES}",
        f"ENV {path}:/usr/lib/postgresql/{POSTGRES}/bin",
        'ENTRYPOINT ["docker-entrypoint.sh"]',
        'CMD ["postgres"]',
    )


def check_health(stopping: threading.Event) -> None:
    """Run the health check of each container again and again, as systemd's timers would."""
    while not stopping.wait(CHECK_PAUSE_S):
        found = subprocess.run(["podman", "ps", "-q"], capture_output=True, text=True).stdout
        for container in found.split():
            command = ["podman", "healthcheck", "run", container]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def service(home: Path) -> Iterator[str]:
    """Give the address of the Docker API while it runs."""
    socket = home / "podman.sock"
    socket.unlink(missing_ok=True)
    stopping = threading.Event()
    checking = threading.Thread(target=check_health, args=(stopping,))
    with (home / "service.log").open("ab") as log:
        serving = subprocess.Popen(
            ["podman", "system", "service", "--time=0", f"unix://{socket}"], stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + UP_S
        while not socket.exists():
            if serving.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"engine: podman does not serve: see {log.name}")
            time.sleep(0.1)
        checking.start()
        yield f"unix://{socket}"
    finally:
        stopping.set()
        if checking.is_alive():
            checking.join()
        serving.terminate()
        serving.wait()


def mounts_below(home: Path, mountinfo: str) -> list[str]:
    """Return the mount points below a folder, those inside others first."""
    points = [line.split()[4] for line in mountinfo.splitlines()]
    shown = [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), at) for at in points]
    return sorted((at for at in shown if at.startswith(f"{home}/")), reverse=True)


def end_monitors(home: Path, processes: Path = Path("/proc")) -> list[int]:
    """Kill each conmon of this engine; return their numbers.

    That of an exec stays five minutes behind its end, runs podman, and so mounts the storage again.
    """
    ended = []
    for entry in processes.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == "conmon" and any(f"{home}/" in word for word in words):
                ended.append(int(entry.parent.name))
                os.kill(ended[-1], signal.SIGKILL)
    return ended


@contextlib.contextmanager
def unmounting(home: Path) -> Iterator[None]:
    """Unmount in the end what Podman leaves mounted below a folder, also after SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        end_monitors(home)
        for point in mounts_below(home, Path("/proc/self/mountinfo").read_text()):
            subprocess.run(["umount", "--lazy", point], check=False)


def run_with_engine(command: list[str], trees: Path, home: Path) -> int:
    """Make the images, and return the exit status of the command beside a serving engine."""
    bases = {name: made(trees / name / "base", ()) for name in ("bookworm", "trixie")}
    docker = docker_command(bases["trixie"], home)
    make_images(trees)
    with service(home) as address:
        given = {
            "DOCKER_HOST": address,
            "DOCKER_BUILDKIT": "0",
            "DOCKER_CONFIG": str(docker / "config"),
            "PATH": f"{docker}/usr/bin:{os.environ['PATH']}",
        }
        done = subprocess.run(command, env={**os.environ, **given})
    run("podman", "image", "prune", "--force")  # layers of builds that others replaced
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trees", type=Path, default=ROOT / "build" / "deb")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "engine")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if reason := why_not():
        tell(f"skipped: {reason}")
        return SKIPPED
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    install_packages()
    (home / "containers.conf").write_text(CONF)
    (home / "storage.conf").write_text(STORAGE.format(home=home))
    os.environ["CONTAINERS_CONF"] = str(home / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(home / "storage.conf")
    with unmounting(home):
        return run_with_engine(options.command, options.trees, home)


if __name__ == "__main__":
    sys.exit(main())
