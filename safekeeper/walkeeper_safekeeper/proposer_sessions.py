"""The connections of one log's proposers, and what the log knows of these proposers.

    send(connection, message)   a message of the driver, to the session of the connection
    pause(session)              the session reads on when less WAL is queued

An asyncio shell's index; it decides nothing of the consensus.
"""

from __future__ import annotations

from typing import Protocol

from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_safekeeper.proposer_reports import ProposerReports

PROPOSERS_KNOWN_MAX = 100  # for `status`; each try of a proposer greets under a fresh id


class Session(Protocol):
    """A proposer's connection, as far as the log speaks to it."""

    def send(self, message: Message) -> None: ...
    def resume(self) -> None: ...
    def receives_more(self) -> bool:
        """Return True if a part of a message has come since the last call, and not all of it."""
        ...


class ProposerSessions:
    """Sessions by the number of their connection, and proposers by their id."""

    def __init__(self) -> None:
        self.by_connection: dict[int, Session] = {}
        self.primary = ProposerReports[PrimaryReport]()
        self.away = ProposerReports[MembersReport]()
        self._paused: list[Session] = []
        self._proposers: dict[bytes, tuple[str, str]] = {}

    def send(self, connection: int, message: Message) -> None:
        """Send the message, unless the connection has ended."""
        session = self.by_connection.get(connection)
        if session is not None:
            session.send(message)

    def pause(self, session: Session) -> None:
        """Note that the session reads no more until `resume`."""
        self._paused.append(session)

    def resume(self) -> None:
        """Let the paused sessions read on."""
        paused, self._paused = self._paused, []
        for waiting in paused:
            waiting.resume()

    @property
    def is_paused(self) -> bool:
        """Return True if a session waits for `resume`."""
        return bool(self._paused)

    def receiving(self) -> frozenset[int]:
        """Return the connections on which a part of a message came since the last call."""
        return frozenset(n for n, each in self.by_connection.items() if each.receives_more())

    def remember(
        self, proposer_id: bytes, address: str, application_name: str, *, leader_id: bytes
    ) -> None:
        """Remember the newest proposers and the leader; greetings must not fill the memory."""
        known = self._proposers
        known.pop(proposer_id, None)
        known[proposer_id] = (address, application_name)
        if len(known) > PROPOSERS_KNOWN_MAX:
            del known[next(known_id for known_id in known if known_id != leader_id)]

    def known(self, proposer_id: bytes) -> tuple[str, str] | None:
        """Return the address and the application_name of a proposer that greeted, or None."""
        return self._proposers.get(proposer_id)
