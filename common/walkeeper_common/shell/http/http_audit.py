"""The audit of a daemon's --http: its refusals, and each peer's first request in an hour. A shell.

A monitor asks each few seconds, so its login is noted once an hour. A peer that proves nothing has
no login. Refusals have the lines and the counts of `audit`, with `http-` before the reason.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from walkeeper_common.access.http_access import HttpRefusal
from walkeeper_common.access.identity import NOBODY, Identity
from walkeeper_common.metrics import HTTP_REFUSALS, Sample
from walkeeper_common.shell.log_lines.audit import Audit

LOGIN_S = 3600.0
LOGINS_MAX = 256  # peers whose last line is remembered
PREFIX = "http-"


class HttpAudit:
    """One daemon's; `audit` is that of all its doors, if it has others."""

    def __init__(self, audit: Audit | None = None) -> None:
        self._audit = audit or Audit()
        self._logins: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def refusal(self, refusal: HttpRefusal, address: str) -> None:
        """Note a request that is not let in."""
        self._audit.refusal(PREFIX + refusal.reason, NOBODY, address, text=refusal.text)

    def login(self, identity: Identity, address: str) -> None:
        """Note a request that is let in, unless this peer has a line in this hour."""
        peer, now_s = (identity.how, identity.name, address), asyncio.get_running_loop().time()
        if now_s - self._logins.get(peer, -LOGIN_S) < LOGIN_S:
            return
        self._logins[peer] = now_s
        self._logins.move_to_end(peer)
        if len(self._logins) > LOGINS_MAX:
            self._logins.popitem(last=False)
        self._audit.login(identity, address, door="http")

    def samples(self) -> Iterator[Sample]:
        """Yield the refusals by reason."""
        for reason, count in self._audit.refusals.items():
            if reason.startswith(PREFIX):
                yield Sample(HTTP_REFUSALS, count, {"reason": reason.removeprefix(PREFIX)})
