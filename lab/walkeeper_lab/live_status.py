"""`walkeeper up`'s view: on a terminal a table that stays, elsewhere a line for each change."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import time
from typing import IO, Any, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from walkeeper_admin.log_verdict import number_of
from walkeeper_admin.primary.primary_settings import standbys
from walkeeper_admin.status import DEGRADED, NO_QUORUM, OK, UNKNOWN, state_of, verdict
from walkeeper_common.errors import Refused
from walkeeper_common.shell.log_lines.recent_events import RecentEvents
from walkeeper_common.shell.process.command_output import Audience
from walkeeper_lab.live_console import LiveConsole
from walkeeper_proposer.postgres.primary_sql import connected

LEVELS = {OK: "INFO", DEGRADED: "WARNING", NO_QUORUM: "ERROR", UNKNOWN: "WARNING"}
COLUMNS = ("term", "flush_lsn", "commit_lsn")


@dataclass(frozen=True, slots=True)
class PrimaryState:
    """The primary's view of its proposer; behind_bytes changes all the time."""

    state: str
    behind_bytes: int | None = None

    def __str__(self) -> str:
        behind = "" if self.behind_bytes is None else f", {self.behind_bytes} bytes behind"
        return self.state + behind


class LiveStatus(LiveConsole):
    """The view: `say` prints an event, and `show` the present state."""

    def __init__(self) -> None:
        super().__init__(cast("IO[str]", Audience(sys.stdout)))
        self._told = ""
        self.events = RecentEvents()

    def say(self, text: str) -> None:
        """Print one line above the table."""
        self.console.print(text)
        self.events.add("INFO", text, int(time()))

    def show_secret(self, text: str) -> None:
        """Print one line on a terminal alone, and keep it out of the events."""
        if self.is_terminal:
            self.console.print(text)

    def show(self, document: dict[str, Any], primary: PrimaryState) -> None:
        """Show the document of `status --json` and the primary's state; note each change."""
        code, text = verdict(document)
        sentence = f"{text}; primary: {primary.state}"
        if self.is_terminal:
            self.update(Group(_table(document), _summary(document, primary)))
        elif sentence != self._told:
            self.console.print(f"status: {sentence}")
        if sentence != self._told:
            self.events.add(LEVELS[code], f"status: {sentence}", int(time()))
        self._told = sentence


def _table(document: dict[str, Any]) -> Table:
    table = Table("safekeeper", "address", "state", *COLUMNS, "standbys", box=None, pad_edge=False)
    for line in document["safekeepers"]:
        state = Text(state_of(line), "green" if state_of(line) == "ok" else "bold red")
        values = ["-" if line[name] is None else str(line[name]) for name in COLUMNS]
        readers = ", ".join(standby["application_name"] for standby in line["standbys"]) or "-"
        table.add_row(str(number_of(line) or "-"), line["address"], state, *values, readers)
    return table


def _summary(document: dict[str, Any], primary: PrimaryState) -> Text:
    code, sentence = verdict(document)
    style = "green" if code == OK else "bold red"
    return Text.assemble((sentence, style), f"\nprimary: {primary}\nCtrl-C detaches and stops")


async def primary_state(dsn: str, name: str) -> PrimaryState:
    """Ask the primary for the state of its proposer, which no safekeeper knows."""
    try:
        async with connected(dsn) as sql:
            rows = [row for row in await standbys(sql) if row.application_name.lower() == name]
    except Refused as error:
        return PrimaryState(f"DOWN ({error})")
    if not rows:
        return PrimaryState(f"{name} is not connected")
    state = f"{name} {rows[0].state or 'state hidden'} as {rows[0].sync_state or 'hidden'}"
    return PrimaryState(state, rows[0].behind_bytes)
