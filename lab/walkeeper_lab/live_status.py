"""`walkeeper up`'s view: on a terminal a table that stays, elsewhere a line for each change."""

from __future__ import annotations

import sys
from time import time
from typing import IO, Any, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from walkeeper_admin.log_verdict import number_of
from walkeeper_admin.primary.standby_names import DEFAULT_NAME
from walkeeper_admin.status import DEGRADED, NO_QUORUM, OK, UNKNOWN, state_of, verdict
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_common.shell.log_lines.recent_events import RecentEvents
from walkeeper_common.shell.process.command_output import Audience
from walkeeper_lab.live_console import LiveConsole
from walkeeper_proposer.postgres.sync_state import ABSENT

LEVELS = {OK: "INFO", DEGRADED: "WARNING", NO_QUORUM: "ERROR", UNKNOWN: "WARNING"}
COLUMNS = ("term", "flush_lsn", "commit_lsn")


class LiveStatus(LiveConsole):
    """The view: `say` prints an event, and `show` the present state."""

    def __init__(self) -> None:
        super().__init__(cast("IO[str]", Audience(sys.stdout)))
        self._last_sentence = LastText()
        self.events = RecentEvents()

    def say(self, text: str) -> None:
        """Print one line above the table."""
        self.console.print(text)
        self.events.add("INFO", text, int(time()))

    def show_secret(self, text: str) -> None:
        """Print one line on a terminal alone, and keep it out of the events."""
        if self.is_terminal:
            self.console.print(text)

    def show(self, document: dict[str, Any]) -> None:
        """Show the document of `status --json`, which has asked the primary; note each change."""
        code, text = verdict(document)
        sentence = f"{text}; primary: {primary_state(document)}"
        has_changed = self._last_sentence.changes_to(sentence)
        if self.is_terminal:
            self.update(Group(_table(document), _summary(document)))
        elif has_changed:
            self.console.print(f"status: {sentence}")
        if has_changed:
            self.events.add(LEVELS[code], f"status: {sentence}", int(time()))


def _table(document: dict[str, Any]) -> Table:
    table = Table("safekeeper", "address", "state", *COLUMNS, "standbys", box=None, pad_edge=False)
    for line in document["safekeepers"]:
        state = Text(state_of(line), "green" if state_of(line) == "ok" else "bold red")
        values = ["-" if line[name] is None else str(line[name]) for name in COLUMNS]
        readers = ", ".join(standby["application_name"] for standby in line["standbys"]) or "-"
        table.add_row(str(number_of(line) or "-"), line["address"], state, *values, readers)
    return table


def _summary(document: dict[str, Any]) -> Text:
    code, sentence = verdict(document)
    style = "green" if code == OK else "bold red"
    primary = f"\nprimary: {primary_state(document)}"
    return Text.assemble((sentence, style), f"{primary}\nCtrl-C detaches and stops")


def primary_state(document: dict[str, Any]) -> str:
    """Return the primary's state of its proposer, from the answer that the verdict judges."""
    primary, proposer = document["cluster"].get("primary"), document["cluster"]["proposer"]
    name = proposer["application_name"] if proposer else DEFAULT_NAME
    error = document["cluster"].get("dsn_error")
    doubt = f" ({error})" if error else ""
    if primary is None:
        return f"not known{doubt}"
    if primary["sync_state"] == ABSENT:
        return f"{name} is not connected"
    if not primary["connected"]:
        return f"DOWN ({primary['error'] or error})"
    streams = "streaming" if primary["streaming"] else "not streaming"
    return f"{name} {streams} as {primary['sync_state'] or 'hidden'}{doubt}"
