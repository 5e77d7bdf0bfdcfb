"""Replaces silent members by spares while this proposer leads (M6). An asyncio shell.

    Repairs(…).run()     until cancelled

It performs the very steps of `walkeeper replace`. So a proposer may be killed at any point of a
repair. The next one that is elected finds it in the configuration, and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import time
from typing import NoReturn

from walkeeper_common.addresses import Address, parse_address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.operator_text.times import shown_time
from walkeeper_common.quorum import member_id, spare_address
from walkeeper_common.shell.log_lines.operator_log import log_note
from walkeeper_proposer.consensus.members.changing import change_members
from walkeeper_proposer.consensus.members.repairing import (
    REPAIRS_S,
    Auditor,
    Held,
    Repair,
    well_members,
)
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.member_changes import Limits, draw, perform

logger = logging.getLogger("walkeeper.repairs")

LOOK_S = 1.0


class Repairs:
    """Looks at the core each LOOK_S, and performs one repair at a time."""

    def __init__(
        self,
        cluster: str,
        core: Callable[[], Proposer],
        addresses: Callable[[], Sequence[Address]],
        grace_s: float,
    ) -> None:
        """Watch no member yet. A member is silent for `grace_s` before a spare replaces it."""
        self._cluster, self._core, self._addresses = cluster, core, addresses
        self._auditor = Auditor(grace_s)
        self.done, self.failed, self.is_under_way = 0, 0, False
        self._replaces, self._held_text = "", ""
        self._held: Held | None = None
        self._logged_s: float | None = None  # when the log said last that a repair is held back

    @property
    def facts(self) -> dict[str, object]:
        """Return the repairs of this process, for /status."""
        known = {"is_under_way": self.is_under_way, "done": self.done, "failed": self.failed}
        return {**known, "text": self.shown() or None}

    def shown(self) -> str:
        """Return the repair that is under way, or why none begins; empty if none is needed."""
        return self._replaces if self.is_under_way else self._held_text

    async def run(self) -> NoReturn:
        """Look at the members, and replace those that are silent, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            repair = self._audit(loop.time())
            self._tell_held(loop.time())
            if repair is None:
                continue
            self.is_under_way, self._replaces = True, f"replacing {repair.shown}"
            try:
                await self._perform(repair)
            finally:
                self.is_under_way = False
            self._auditor.rest()

    def _audit(self, now_s: float) -> Repair | None:
        core = self._core()
        if core.leader is None:
            self._auditor.rest()
            return None
        well = well_members(core.members)
        return self._auditor.audit(core.leader.configuration, well, now_s)

    def _tell_held(self, now_s: float) -> None:
        """Log once an hour that a repair is held back, why, and when it may go on."""
        if self._auditor.held != self._held:
            self._held = self._auditor.held
            self._held_text = _shown(self._held, now_s) if self._held is not None else ""
        if self._held is None:
            return
        if self._logged_s is None or now_s - self._logged_s >= REPAIRS_S:
            self._logged_s = now_s
            text = f"a repair is {self._held_text}; see docs/runbooks.md#repair"
            log_note(logger, text, (), Severity.WARNING)

    async def _perform(self, repair: Repair) -> None:
        log_note(logger, f"replacing {repair.shown}: it has been silent", (), Severity.WARNING)
        try:
            address = parse_address(spare_address(repair.spare))
            addresses = tuple(dict.fromkeys((*self._addresses(), address)))
            known = tuple(map(shown_address, addresses))
            goal = repair.goal(self._cluster, addresses.index(address), known)
            steps = change_members(goal, range(len(addresses)), draw)
            await perform(steps, addresses, Limits(timeout_s=self._auditor.grace_s), self._tell)
        except Refused as error:
            self.failed += 1
            self._auditor.failed(repair)
            text = f"could not replace {repair.shown}: {error}; see docs/runbooks.md#repair"
            log_note(logger, text, (), Severity.WARNING)
        else:
            self.done += 1
            log_note(logger, f"replaced {repair.shown}", (), Severity.LOG)

    def _tell(self, text: str) -> None:
        log_note(logger, f"repair: {text}", (), Severity.LOG)


def _shown(held: Held, now_s: float) -> str:
    until = ""
    if held.until_s is not None:
        until = f"; it may begin at {shown_time(int(time() + held.until_s - now_s))}"
    return f"held back: safekeeper {member_id(held.silent)} is silent, and {held.why}{until}"
