"""The output of the demo: its steps, and the cluster's state during all of them. A shell.

On a terminal the cluster's state is a table that stays below the printed lines. Elsewhere it is a
line every other second, and one when a member goes down or comes back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg
from rich.console import Group
from rich.table import Table
from rich.text import Text

from walkeeper_lab.demo.stage import Stage
from walkeeper_lab.live_console import LiveConsole
from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_proposer.postgres.primary_sql import LOST

LOOK_S = 0.5
LINE_EVERY_S = 2.0
POSITION = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
    "ELSE pg_current_wal_flush_lsn() END::text"
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member's position as text, or None if the member does not answer."""

    name: str
    lsn: str | None

    @property
    def shown(self) -> str:
        return self.lsn or "DOWN"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of all members at one moment."""

    elapsed_s: float
    commits_per_s: float
    acknowledged: int
    quorum_lsn: str | None
    members: tuple[Member, ...]

    @property
    def down(self) -> set[str]:
        return {member.name for member in self.members if member.lsn is None}


class Progress(LiveConsole):
    """The demo's console: `say` and `title` print lines that stay, `watch` updates the rest."""

    def say(self, text: str) -> None:
        self.console.print(f"   {text}", style="dim")

    def title(self, number: int, text: str) -> None:
        self.console.print(f"\n{number}. {text}", style="bold")

    def proven(self, claim: str, figure: str) -> None:
        self.console.print(Text.assemble(("   proven: ", "bold green"), f"{claim}:"))
        self.console.print(f"           {figure}.")

    def failed(self, claim: str, found: str) -> None:
        self.console.print(Text.assemble(("   FAILED: ", "bold red"), f"{claim}: {found}"))

    async def watch(self, stage: Stage) -> None:
        """Show the cluster's state until the task is cancelled."""
        began_s, shown_s, down = stage.load.now_s(), -LINE_EVERY_S, set[str]()
        while True:
            snapshot = await look(stage, began_s)
            if self.is_terminal:
                self.update(_table(snapshot))
            elif down != snapshot.down or snapshot.elapsed_s >= shown_s + LINE_EVERY_S:
                self.say(_line(snapshot))
                shown_s, down = snapshot.elapsed_s, snapshot.down
            await asyncio.sleep(LOOK_S)


async def look(stage: Stage, began_s: float) -> Snapshot:
    """Ask every member for its position: the standby, then the safekeepers, then the primary.

    If one member must not be ahead of another one, its question comes first.
    """
    standby = await _position(stage.standby)
    document = await stage.status()
    primary = await _position(stage.primary)
    lines = document["safekeepers"]
    names = [f"safekeeper {number}" for number in stage.ports]
    safekeepers = [
        Member(name, line["flush_lsn"] if line["reachable"] else None)
        for name, line in zip(names, lines, strict=True)
    ]
    members = [*safekeepers, Member("primary", primary)]
    if stage.standby.is_wanted:
        members.append(Member("standby", standby))
    proposer = "leads" if document["cluster"]["proposer"] else "elects"
    running = proposer if stage.proposer.is_running else None
    return Snapshot(
        stage.load.now_s() - began_s,
        stage.load.rate(),
        len(stage.load.acknowledged),
        document["cluster"]["commit_lsn"],
        (*members, Member("proposer", running)),
    )


async def _position(server: PostgreSQL) -> str | None:
    if not server.is_wanted:
        return None
    try:
        return str(await server.value(POSITION))
    except (asyncpg.PostgresError, *LOST):
        return None


def _line(now: Snapshot) -> str:
    members = ", ".join(f"{member.name} {member.shown}" for member in now.members)
    members = members.replace(", safekeeper ", ", ").replace("safekeeper ", "safekeepers ")
    return (
        f"{now.elapsed_s:3.0f} s: {now.commits_per_s:,.0f} commits/s, {now.acknowledged:,} "
        f"acknowledged; quorum {now.quorum_lsn}, {members}"
    )


def _table(now: Snapshot) -> Group:
    table = Table(*(member.name for member in now.members), box=None, pad_edge=False)
    table.add_row(
        *(Text(m.shown, "green" if m.lsn is not None else "bold red") for m in now.members)
    )
    head = (
        f"\n{now.elapsed_s:.0f} s   {now.commits_per_s:,.0f} commits/s   "
        f"{now.acknowledged:,} acknowledged   a quorum has {now.quorum_lsn}"
    )
    return Group(Text(head, "bold"), table)
