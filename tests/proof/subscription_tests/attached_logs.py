"""Logical logs on demand: the server that ThroughLog.pm asks, over a socket.

    with LogServer(directory) as server:      server.path is the socket

A question is a line of JSON, and so is its answer. Each publisher has three safekeepers of its own,
with --copy-dsn. Each set of publications of a database has a log and its proposer.

    {"do": "log", "host", "port", "dbname", "publications"}    its name, and a safekeeper's port
    {"do": "views", "port"}                  SQL for pg_stat_replication and pg_replication_slots
    {"do": "drop", "port", "slot"}           drop a slot of a log of this publisher
    {"do": "end", "port", "name"}            end the log: no proposer, and no slot on the publisher
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socketserver
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support.cluster import Daemon, walkeeper
from walkeeper_admin.status import gather
from walkeeper_lab.local.tcp_ports import free_port

STATUS_TIMEOUT_S = 3.0
SLOTS = "slot_name::name, active_pid IS NOT NULL AS active, active_pid::int"
READERS = "application_name, pid::int, state"


@dataclass(frozen=True, slots=True)
class Log:
    """One log: a database's publications, and the proposer."""

    name: str
    dsn: str
    publications: frozenset[str]
    proposer: Daemon


class Publisher:
    """The safekeepers and the logs of one publisher."""

    def __init__(self, host: str, port: int, directory: Path) -> None:
        self.dsn = f"host={host} port={port} user=postgres"
        self.ports = [free_port() for _ in range(3)]
        self.addresses = ",".join(f"127.0.0.1:{each}" for each in self.ports)
        self.directory, self.logs = directory, dict[str, Log]()
        self._made = 0
        self.safekeepers = [
            Daemon(
                f"safekeeper{number}",
                (
                    *("safekeeper", "--id", str(number), "--listen", f"127.0.0.1:{each}"),
                    *("--data-dir", str(directory / f"{port}_{number}"), "--copy-dsn", self.dsn),
                ),
                directory / f"{port}_{number}.log",
            )
            for number, each in enumerate(self.ports, 1)
        ]
        for safekeeper in self.safekeepers:
            safekeeper.start(wait=False)
        for safekeeper in self.safekeepers:
            safekeeper.wait_ready()

    def log_of(self, database: str, publications: frozenset[str]) -> Log:
        """Return the log of these publications; make it first if there is none.

        A log's proposer needs all of them. Where one does not exist, the log of the others answers.
        """
        dsn = f"{self.dsn} dbname={database}"
        same = [log for log in self.logs.values() if log.dsn == dsn]
        for log in same:
            if log.publications == publications:
                return log
        if missing := publications - self._existing(dsn):
            if same:
                return same[0]
            publications -= missing
        self._made += 1
        name = f"log{self._made}"
        where = ("--safekeepers", self.addresses, "--cluster", name, "--dsn", dsn, "--logical")
        done = walkeeper("create", *where)
        if done.returncode:
            raise RuntimeError(f"{done.stdout}{done.stderr}")
        listed = ("--publication", ",".join(sorted(publications)), "--allow-unsafe-settings")
        file = self.directory / f"{name}_{self.ports[0]}.log"
        proposer = Daemon(name, ("proposer", *where, *listed), file)
        proposer.start()
        self.logs[name] = Log(name, dsn, publications, proposer)
        return self.logs[name]

    def _existing(self, dsn: str) -> set[str]:
        with psycopg.connect(dsn) as session:
            return {row[0] for row in session.execute("SELECT pubname FROM pg_publication")}

    def end(self, name: str) -> None:
        """End the log for good."""
        log = self.logs.pop(name)
        log.proposer.kill()
        with psycopg.connect(log.dsn, autocommit=True) as session:
            session.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
                "WHERE slot_name = %s AND active_pid IS NOT NULL",
                (f"walkeeper_{name}",),
            )
            session.execute("SELECT pg_drop_replication_slot(%s)", (f"walkeeper_{name}",))

    def drop_slot(self, slot: str) -> None:
        """Drop a consumer's slot in the log that has it."""
        for name in self.logs:
            where = f"host=127.0.0.1 port={self.ports[0]} user=postgres dbname={name}"
            with (
                psycopg.connect(where, autocommit=True, replication="database") as session,
                suppress(psycopg.errors.UndefinedObject),
            ):
                session.execute(f'DROP_REPLICATION_SLOT "{slot}"'.encode())

    def views(self) -> dict[str, str]:
        """Return queries with the rows of the safekeepers' slots and readers."""
        slots, readers = dict[str, Any](), list[dict[str, Any]]()
        pairs = [("127.0.0.1", port) for port in self.ports]
        for name in self.logs:
            for line in asyncio.run(gather(pairs, name, STATUS_TIMEOUT_S))["safekeepers"]:
                pids = {slot["slot_name"]: slot["active_pid"] for slot in line["slots"] or ()}
                for each in line["standbys"] or ():
                    readers.append({**each, "pid": pids.get(each["slot_name"])})
                for slot in line["slots"] or ():
                    if slot["slot_name"] not in slots or slot["active_pid"]:
                        slots[slot["slot_name"]] = slot
        return {
            "pg_replication_slots": _query(SLOTS, list(slots.values())),
            "pg_stat_replication": _query(READERS, readers),
        }

    def close(self) -> None:
        for daemon in [*(log.proposer for log in self.logs.values()), *self.safekeepers]:
            daemon.kill()


def _query(columns: str, rows: list[dict[str, Any]]) -> str:
    """Return a query of these columns. JSON carries the rows, so no value needs quotes."""
    kinds = "slot_name text, active_pid int, application_name text, pid int, state text"
    text = json.dumps(rows).replace("'", "''")
    return f"SELECT {columns} FROM json_to_recordset('{text}') AS r({kinds})"


class LogServer:
    """Serve the socket, and keep what was made for each publisher."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="logs_", dir=directory))
        self.path = directory / "logs.socket"
        self._publishers = dict[int, Publisher]()
        self._lock = threading.Lock()
        answer = self._answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(json.dumps(answer(self.rfile.readline())).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(self.path), Handler)
        self.path.chmod(0o777)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for publisher in self._publishers.values():
            publisher.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            with self._lock:
                return self._performed(json.loads(line))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _performed(self, question: dict[str, Any]) -> dict[str, Any]:
        port = int(question["port"])
        match question["do"]:
            case "log":
                if port not in self._publishers:
                    made = Publisher(str(question["host"]), port, self._directory)
                    self._publishers[port] = made
                publisher = self._publishers[port]
                log = publisher.log_of(question["dbname"], frozenset(question["publications"]))
                return {"name": log.name, "port": publisher.ports[0]}
            case "views":
                return dict(self._publishers[port].views())
            case "drop":
                self._publishers[port].drop_slot(question["slot"])
                return {}
            case "end":
                self._publishers[port].end(question["name"])
                return {}
            case unknown:
                raise ValueError(f"{unknown=}")
