"""The audit: one line for each login, refusal and change, with the identity of the peer. A shell.

    audit: event=change act=create identity=anybody how=none address=10.0.0.7:3114 cluster=main

A value is quoted as JSON if it is more than a plain word, so a peer cannot forge a field or a line.
With `as_json` the line is one JSON object. A log of JSON objects (--log-json) has the fields apart,
as `facts`. A crowd of refusals costs REFUSALS_MAX lines a minute for each reason, and the next line
says how many it stands for. Refusals are counted by reason.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from walkeeper_common.access.identity import Identity

AUDIT_LOGGER = "walkeeper.audit"
FACTS = "facts"  # the attribute of a log's record that has the fields of a note
logger = logging.getLogger(AUDIT_LOGGER)

REFUSALS_MAX, MINUTE_S = 10, 60.0
REASONS_MAX = 64
PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,\[\]#*-]+")


@dataclass(slots=True)
class _Minute:
    since_s: float
    lines: int = 0
    held_back: int = 0


class Audit:
    """The events of one daemon; `refusals` are counted by reason since the start."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        write: Callable[[str], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._as_json, self._write, self._now_s = as_json, write, now_s
        self._minutes: dict[str, _Minute] = {}
        self.refusals: Counter[str] = Counter()

    def login(self, identity: Identity, address: str, **facts: object) -> None:
        """Note that a peer has named a log or a cluster and may use it."""
        roles = ",".join(role for role in sorted(identity.roles))
        self._line("login", identity, address, {"roles": roles, **facts})

    def change(self, act: str, identity: Identity, address: str, **facts: object) -> None:
        """Note an act that changes a log, its members or its slots."""
        self._line("change", identity, address, {"act": act, **facts})

    def refusal(self, reason: str, identity: Identity, address: object, **facts: object) -> None:
        """Count a refusal, and note it if its reason has lines left in this minute.

        Only then the address becomes a text.
        """
        if reason not in self.refusals and len(self.refusals) >= REASONS_MAX:
            reason = "other"
        self.refusals[reason] += 1
        now_s, minute = self._now_s(), self._minutes.get(reason)
        if minute is None or now_s >= minute.since_s + MINUTE_S:
            if minute is not None and minute.held_back:
                facts = {**facts, "held_back": minute.held_back}
            minute = self._minutes[reason] = _Minute(now_s)
        if minute.lines >= REFUSALS_MAX:
            minute.held_back += 1
            return
        minute.lines += 1
        self._line("refusal", identity, address, {"reason": reason, **facts})

    def _line(
        self, event: str, identity: Identity, address: object, facts: Mapping[str, object]
    ) -> None:
        fields = {
            "event": event,
            **facts,
            "identity": identity.name,
            "how": identity.how,
            "address": address,
        }
        if self._as_json:
            text = json.dumps({name: _value(value) for name, value in fields.items()})
        else:
            text = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        if self._write is not None:
            self._write(f"audit: {text}")
        else:
            shown = {name: _value(value) for name, value in fields.items()}
            logger.info("audit: %s", text, extra={FACTS: shown})


def _value(value: object) -> object:
    return value if isinstance(value, bool | int | str) else str(value)


def _word(value: object) -> str:
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)
