"""Performs the proposer's effects on its links and on the primary; owns the pause of a candidate.

    post(event)     steps the core and performs what it wants, at once and in order

It is deterministic. Clock, randomness, sockets and PostgreSQL are ports; the simulator runs this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, assert_never

from walkeeper_common.lsn import Lsn
from walkeeper_common.severity import Severity
from walkeeper_common.wire.framing import APPEND_FRAME, Message
from walkeeper_common.wire.messages import Buffer, Feedback
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    AnnounceSoon,
    BackedOff,
    BackOff,
    DropLink,
    Effect,
    Event,
    IdentifyPrimary,
    Note,
    PauseStreaming,
    ReadPrimary,
    Report,
    ResumeStreaming,
    RetainWal,
    Send,
    StartStreaming,
    Stop,
    WalArrived,
)
from walkeeper_proposer.consensus.steady import Steady, steady_state

ANNOUNCE_S = 0.01  # later than most next commits, sooner than users of a standby would notice
BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 2.0


class Links(Protocol):
    """Connections to the safekeepers; LinkUp, LinkLost and Received come back as events."""

    def send(self, link: int, message: Message) -> None: ...
    def send_all(self, links: Sequence[int], frame: list[Buffer], size: int) -> None: ...
    def drop(self, link: int, text: str) -> None:
        """Close, and connect again after a pause. LinkLost follows."""
        ...


class PrimaryPort(Protocol):
    """The primary; PrimaryRead, WalArrived and PrimaryLost come back as events."""

    def identify(self) -> None:
        """Identify the primary; PrimaryIdentified follows, unless the connection is lost."""
        ...

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None: ...
    def stream(self, start_lsn: Lsn, timeline: int) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None: ...
    def retain(self, begin_lsn: Lsn) -> None: ...


class Surroundings(Protocol):
    def after(self, delay_s: float, what: Callable[[], None]) -> None: ...
    def uniform(self, low: float, high: float) -> float:
        """Return a random number; two candidates must not draw the same ones."""
        ...

    def note(
        self, text: str, facts: Sequence[tuple[str, object]], severity: Severity, /
    ) -> None: ...
    def stopped(self, stop: Stop) -> None: ...


class Driver:
    """One proposer's life."""

    def __init__(
        self,
        core: Proposer,
        *,
        links: Links,
        primary: PrimaryPort,
        around: Surroundings,
        announce_s: float = ANNOUNCE_S,
    ) -> None:
        """Make a driver; with `announce_s` 0, standbys learn of each commit at once."""
        self.core, self._announce_s = core, announce_s
        self._links, self._primary, self._around = links, primary, around
        self._events: deque[Event] = deque()
        self._is_running = False
        self._steady: Steady | None = None  # while no other event comes

    def acknowledge_at_once(self, link: int, memory: bytearray, size: int) -> int:
        """Report received acks to the primary, without a step in between.

        This is the fast path of `post`. Return `size`, or 0, with no effect, if `post` has to
        handle the messages in `memory[:size]`."""
        steady = self._steady or self._become_steady()
        if steady is None or self._is_running:
            return 0
        told_lsn = steady.on_frames(link, memory, size)
        if told_lsn is None:
            return 0
        if told_lsn:
            self._is_running = True
            try:
                self._primary.report(told_lsn, steady.feedback)  # commits wait for this
            finally:
                self._is_running = False
        if steady.goes_on or self._events:
            self._run(steady.go_on())
        return size

    def _send_at_once(self, begin_lsn: Lsn, wal: memoryview) -> bool:
        """Send WAL of the primary to all safekeepers, without a step in between.

        Return False, with no effect, if the core has to handle it."""
        steady = self._steady or self._become_steady()
        frame = None if steady is None else steady.on_wal(begin_lsn, wal)
        if steady is None or frame is None:
            return False
        self._is_running = True
        try:
            self._links.send_all(steady.links, frame, APPEND_FRAME.size + len(wal))
        finally:
            self._is_running = False
        effects = steady.bound_window()
        if effects or self._events:
            self._run(effects)
        return True

    def _become_steady(self) -> Steady | None:
        self._steady = steady_state(self.core)
        return self._steady

    def _step(self, event: Event) -> Sequence[Effect]:
        if type(event) is not WalArrived and type(event) is not AnnounceDue:
            self._steady = None
        return self.core.step(event)

    def post(self, event: Event) -> None:
        """Step the core with this event, after those that came before."""
        if self._is_running:  # an effect posted an event: the loop below takes it up
            self._events.append(event)
            return
        if type(event) is WalArrived and self._send_at_once(event.begin_lsn, event.wal):
            return
        self._events.append(event)
        self._run(())

    def _run(self, effects: Iterable[Effect]) -> None:
        self._is_running = True
        try:
            for effect in effects:
                self._perform(effect)
            while self._events:
                for effect in self._step(self._events.popleft()):
                    self._perform(effect)
        finally:
            self._is_running = False

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(link, message):
                self._links.send(link, message)
            case Report(commit_lsn, feedback):
                self._primary.report(commit_lsn, feedback)
            case RetainWal(begin_lsn):
                self._primary.retain(begin_lsn)
            case DropLink(link, text):
                self._links.drop(link, text)
            case IdentifyPrimary():
                self._primary.identify()
            case ReadPrimary(begin_lsn, end_lsn, timeline):
                self._primary.read(begin_lsn, end_lsn, timeline)
            case StartStreaming(start_lsn, timeline):
                self._primary.stream(start_lsn, timeline)
            case PauseStreaming():
                self._primary.pause()
            case ResumeStreaming():
                self._primary.resume()
            case AnnounceSoon():
                self._around.after(self._announce_s, lambda: self.post(AnnounceDue()))
            case BackOff(attempt):
                most_s = min(BACK_OFF_S_MAX, BACK_OFF_S_MIN * 2**attempt)
                delay_s = self._around.uniform(BACK_OFF_S_MIN, most_s)
                self._around.after(delay_s, lambda: self.post(BackedOff()))
            case Note(text, facts, severity):
                self._around.note(text, facts, severity)
            case Stop():
                self._around.stopped(effect)
            case _:
                assert_never(effect)
