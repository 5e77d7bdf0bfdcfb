"""Readers of a safekeeper's WAL: stock pg_receivewal and its files, and IDENTIFY_SYSTEM."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.support.cluster import Cluster
from tests.support.postgres_server import (
    make_directory,
    program,
    run_as_server_user,
    server_environment,
    server_user,
)
from tests.support.waiting import wait_until


def pg_receivewal(port: int, slot: str | None = None) -> contextlib.AbstractContextManager[Path]:
    """Stream from this port of the machine (`receiving`)."""
    return receiving(f"host=127.0.0.1 port={port} user=postgres", slot)


@contextlib.contextmanager
def receiving(dsn: str, slot: str | None = None) -> Iterator[Path]:
    """Yield the directory into which pg_receivewal streams; it connects again when it must.

    It streams already. Its slot reserves no WAL, so it begins with the segment of that moment.
    """
    directory = make_directory("walkeeper_receivewal_")
    said = directory / "said"
    command = [program("pg_receivewal"), "-d", dsn, "-D", str(directory), "--synchronous", "-v"]
    if slot:
        run_as_server_user([*command[:3], "--slot", slot, "--create-slot", "--if-not-exists"])
        command += ["--slot", slot]
    with said.open("w") as output:
        receiver = subprocess.Popen(
            command,
            user=server_user(),
            env=server_environment(),
            cwd="/",
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: "starting log streaming" in said.read_text())
        yield directory
        assert receiver.poll() is None, said.read_text()
    finally:
        receiver.kill()
        receiver.wait()
        shutil.rmtree(directory)


def wait_for_last_segments(cluster: Cluster, directory: Path) -> None:
    """Wait until the directory has the last five whole segments, as safekeeper 1 has them."""
    cluster.wait_all_equal()
    last = cluster.primary.sql("SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
    kept = sorted(path for path in cluster.wal_dir(1).iterdir() if len(path.name) == 24)
    whole = {path.name: path.read_bytes() for path in kept if path.name < last}
    wanted = dict(list(whole.items())[-5:])
    assert len(wanted) == 5
    wait_until(lambda: wanted.items() <= segments_in(directory).items())


def identified(cluster: Cluster, number: int) -> tuple[str, ...]:
    """Return safekeeper 1, 2 or 3's answer to IDENTIFY_SYSTEM: system, timeline, end, database."""
    dsn = f"host=127.0.0.1 port={cluster.ports[number - 1]} user=r replication=true"
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(b"IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return row


def segments_in(directory: Path) -> dict[str, bytes]:
    """Return the segments by name; each timeline's last one is included, padded with zeros."""
    found: dict[str, bytes] = {}
    for path in directory.iterdir():
        name = path.name.removesuffix(".partial")
        if len(name) != 24:
            continue
        try:
            found[name] = path.read_bytes()
        except FileNotFoundError:  # it became whole, and got its own name
            found[name] = (directory / name).read_bytes()
    return found
