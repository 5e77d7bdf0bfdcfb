"""The replication slots of a log's clients, on its safekeepers: list and drop them. A shell.

A drop speaks PostgreSQL's replication protocol, as `pg_receivewal --drop-slot` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from psycopg import conninfo

from walkeeper_admin.log_verdict import name_of
from walkeeper_admin.status import gather
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.shell.tls.own_credentials import own_libpq_parameters
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection, SlotMissing

NAME = "walkeeper_slots"


def rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a table for people, with its head. A shared slot has a line for each member."""
    table: list[tuple[str, ...]] = [("safekeeper", "slot", "restart_lsn", "client", "keeps bytes")]
    for line in document["safekeepers"]:
        clients = {s["slot_name"]: s["application_name"] for s in line["standbys"]}
        for slot in line["slots"]:
            name = slot["slot_name"]
            is_oldest = line.get("kept_for") == f"slot {name}"
            table.append(
                (
                    str(line["id"]),
                    name,
                    slot["restart_lsn"] or "-",
                    clients.get(name) or (str(slot["active_pid"]) if slot["active_pid"] else "-"),
                    f"{line['kept_bytes']:,}" if is_oldest else "-",
                )
            )
    return table


async def drop(
    addresses: Sequence[Address], cluster: str, slot: str, timeout_s: float
) -> list[str]:
    """Drop the slot on each safekeeper that has it; return a line for each.

    A safekeeper that does not answer now learns of the drop from a proposer (wire/shared_slots).

    Raise Refused if no safekeeper has it, or if a client uses it.
    """
    document = await gather(addresses, cluster, timeout_s)
    found = [
        (address, line)
        for address, line in zip(addresses, document["safekeepers"], strict=True)
        if slot in {s["slot_name"] for s in line["slots"]}
    ]
    if not found:
        away = [name_of(line) for line in document["safekeepers"] if not line["reachable"]]
        silent = f" ({', '.join(away)} does not answer)" if away else ""
        raise Refused(
            f"no safekeeper has a slot {slot} of cluster {cluster!r}{silent}; `walkeeper slots ls` "
            "lists the slots"
        )
    for _, line in found:
        using = next(s for s in line["slots"] if s["slot_name"] == slot)["active_pid"]
        if using is not None:
            raise Refused(f"slot {slot} of {name_of(line)} is in use: stop its client first")
    lines = []
    for address, line in found:
        await _drop_one(address, cluster, slot)
        lines.append(f"{name_of(line)} at {shown_address(address)}: dropped slot {slot}")
    return lines


async def _drop_one(address: Address, cluster: str, slot: str) -> None:
    host, port = address
    options = f"-c walkeeper.cluster={cluster}"
    tls: dict[str, Any] = own_libpq_parameters()
    where = conninfo.make_conninfo(host=host, port=port, user="walkeeper", options=options, **tls)
    connection = await ReplicationConnection.open(where, NAME)
    try:
        with suppress(SlotMissing):  # the drop has reached it through the proposer
            await connection.query(f'DROP_REPLICATION_SLOT "{slot}"')
    finally:
        connection.close()
