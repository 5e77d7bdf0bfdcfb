"""Measures a round of slot sharing: `python -m tests.proof.sharing_cost`, plain and over TLS.

A proposer that leads shares the slots of physical clients every two seconds. A round has a new
connection to each safekeeper, and with TLS a handshake. The figures are CPU times, so other work on
the machine changes them little.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import uvloop

from tests.support.cluster import Cluster
from tests.support.postgres_server import PostgresServer
from tests.tls_files import TlsFiles
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.slot_sharing import SHARE_S, SlotSharing

ROUNDS, WARM_UP = 400, 10
SLOTS = 60
TICKS_S = os.sysconf("SC_CLK_TCK")


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, PostgresServer.create() as primary:
        files = TlsFiles(Path(directory))
        cluster = Cluster(primary, tls=lambda number: files.path(Role.SAFEKEEPER, str(number)))
        try:
            cluster.start_safekeepers()
            cluster.make_log()
            for slots in (0, SLOTS):
                _make_slots(cluster, slots)
                for file in (None, files.path(Role.PROPOSER, "db1")):
                    use_credentials(file)
                    uvloop.run(_measure(cluster, slots, "plain" if file is None else "TLS"))
        finally:
            cluster.close()
    return 0


def _make_slots(cluster: Cluster, count: int) -> None:
    dsn = f"host=127.0.0.1 port={cluster.ports[0]} user=a dbname=replication replication=true"
    for number in range(count):
        with psycopg.connect(f"{dsn} sslmode=disable", autocommit=True) as connection:
            connection.execute(f"CREATE_REPLICATION_SLOT s{number} PHYSICAL RESERVE_WAL".encode())


def _nobody() -> Proposer:
    raise AssertionError("rounds are asked for one by one")


async def _measure(cluster: Cluster, slots: int, how: str) -> None:
    addresses = [("127.0.0.1", port) for port in cluster.ports]
    sharing = SlotSharing(cluster.name, _nobody, lambda: addresses)
    for _ in range(WARM_UP):
        await sharing.one_round()
    before = [_cpu_s(daemon.pid) for daemon in cluster.safekeepers]
    begun_s = time.process_time()
    for _ in range(ROUNDS):
        await sharing.one_round()
    own_ms = (time.process_time() - begun_s) / ROUNDS * 1000
    after = [_cpu_s(daemon.pid) for daemon in cluster.safekeepers]
    their_ms = max(now - then for now, then in zip(after, before, strict=True)) / ROUNDS * 1000
    _say(
        f"{how}, {slots} slots: {_cost(own_ms)} of the proposer, {_cost(their_ms)} of a safekeeper"
    )


def _cost(ms: float) -> str:
    return f"{ms:.2f} ms a round ({ms / SHARE_S / 10:.2f} % of a core)"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
