"""The sending of WAL to each safekeeper. Pure.

A safekeeper that keeps up gets views into the window. A lagging safekeeper gets older WAL, which
the primary's slot no longer keeps. The leader reads it from a donor, pinned to its ballot
(docs/steps.md#appending).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from walkeeper_common.buffers import Buffer
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus.progress import (
    DONOR_READS_MAX,
    Member,
    Stage,
    donor_for,
)
from walkeeper_proposer.consensus.proposer_events import Effect, Send
from walkeeper_proposer.consensus.wal_window import WalWindow


@dataclass(slots=True)
class Feeder:
    """The leader's sending half; the leader keeps commit_lsn and restart_lsn up to date."""

    generation: int
    ballot: Ballot
    timelines: Timelines
    window: WalWindow
    commit_lsn: Lsn
    restart_lsn: Lsn
    last: AppendRequest | None = None

    def heartbeat(self, member: Member) -> Effect:
        """Send an AppendRequest without payload, at the member's write position."""
        return self._append(member, b"", 0)

    def _append(self, member: Member, payload: Buffer, crc: int) -> Effect:
        begin_lsn, last = member.next_lsn, self.last
        if last is not None and (
            last.payload is payload
            and last.begin_lsn == begin_lsn
            and last.commit_lsn == self.commit_lsn
            and last.restart_lsn == self.restart_lsn
        ):
            return self._send(member, last)  # the last member's: made and packed once
        return self._send(member, self._request(begin_lsn, payload, crc))

    def _request(self, begin_lsn: Lsn, payload: Buffer, crc: int) -> AppendRequest:
        self.last = AppendRequest(
            generation=self.generation,
            ballot=self.ballot,
            timeline=self.timelines.at(begin_lsn),
            begin_lsn=begin_lsn,
            end_lsn=Lsn(int(begin_lsn) + len(payload)),
            commit_lsn=self.commit_lsn,
            restart_lsn=self.restart_lsn,
            crc=crc,
            payload=payload,
        )
        return self.last

    def _send(self, member: Member, request: AppendRequest) -> Effect:
        member.next_lsn, member.sent_commit_lsn = request.end_lsn, self.commit_lsn
        return Send(member.link, request)

    def feed_all(self, members: Sequence[Member]) -> list[Effect]:
        """Send all members what they may get now. Members that keep up get the same message."""
        effects: list[Effect] = []
        end_lsn, last = self.window.end_lsn, None
        for member in members:
            if not member.attached:
                continue
            if (
                last is not None
                and member.next_lsn == last.begin_lsn
                and len(last.payload) <= member.append_bytes
                and int(last.begin_lsn) - member.flush_lsn < member.in_flight_bytes_max
            ):
                effects.append(self._send(member, last))
                continue
            fed = self.feed(member, members)
            effects += fed
            if len(fed) == 1 and member.next_lsn == end_lsn:
                last = self.last
        return effects

    def feed(self, member: Member, members: Iterable[Member]) -> list[Effect]:
        """Send all that this member may get now, within its bound of bytes in flight."""
        effects: list[Effect] = []
        window = self.window
        if member.next_lsn >= window.end_lsn:
            return effects
        while member.attached and member.in_flight_bytes < member.in_flight_bytes_max:
            if member.next_lsn >= window.end_lsn:
                break
            if member.next_lsn >= window.begin_lsn:
                size_max = self._room(member.next_lsn, member.append_bytes)
                view, crc = window.slice(member.next_lsn, size_max)
                effects.append(self._append(member, view, crc))
                continue
            payload = member.donated.get(member.next_lsn)
            if payload is None:
                break
            del member.donated[member.next_lsn]
            effects.append(self._append(member, payload, crc_of(payload)))
        if member.attached and member.next_lsn < window.begin_lsn:
            effects += self._ask_donor(member, members)
        return effects

    def _room(self, lsn: Lsn, size_max: int) -> int:
        """Return the most bytes of an append at `lsn`, which never crosses a timeline's switch."""
        return min(size_max, self.timelines.next_fork(lsn) - lsn)

    def _ask_donor(self, member: Member, members: Iterable[Member]) -> list[Effect]:
        member.asked_lsn = max(member.asked_lsn, member.next_lsn)
        effects: list[Effect] = []
        donor = donor_for(member, members)
        reads_max = DONOR_READS_MAX
        if donor is not None and member.asked_lsn < donor.donates_lsn:
            if member.donated:
                return effects
            donor.try_read()
            reads_max = 1
        while donor is not None and len(member.donated) < reads_max:
            end_lsn = min(donor.flush_lsn, self.window.begin_lsn)
            size_max = min(donor.append_bytes, member.append_bytes)
            size = min(end_lsn - member.asked_lsn, self._room(member.asked_lsn, size_max))
            if size <= 0:
                break
            request = ReadRequest(self.ballot, member.asked_lsn, size)
            effects.append(Send(donor.link, request))
            member.donated[member.asked_lsn] = None
            member.asked_lsn = member.asked_lsn + size
        return effects

    def on_donated(
        self, donor: Member, response: ReadResponse, members: Iterable[Member]
    ) -> list[Effect]:
        """Send a donor's answer to the laggard that waits for it."""
        everyone = list(members)
        if response.payload:
            donor.has_donated(response.begin_lsn)
        for member in everyone:
            waits = response.begin_lsn in member.donated
            if not waits or member.donated[response.begin_lsn] is not None:
                continue
            end_lsn = response.begin_lsn + len(response.payload)
            is_whole = bool(response.payload) and crc_of(response.payload) == response.crc
            if not is_whole or end_lsn > member.asked_lsn:  # more than we could vouch for
                member.forget_reads()
                continue
            member.donated[response.begin_lsn] = memoryview(response.payload)
            if end_lsn != member.asked_lsn and end_lsn not in member.donated:
                member.forget_reads()  # a short read: the later ones would leave a gap
            return self.feed(member, everyone)
        return []

    def trim(self, members: Iterable[Member]) -> bool:
        """Forget WAL that a quorum has and every attached safekeeper was sent.

        Return True if the window is full nevertheless."""
        needed_lsn = self.window.end_lsn
        for member in members:
            if member.next_lsn < needed_lsn and member.stage is Stage.STREAMING:
                needed_lsn = member.next_lsn
        return self.window.trim(needed_lsn=needed_lsn, commit_lsn=self.commit_lsn)
