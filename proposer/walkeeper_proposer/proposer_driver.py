"""Performs the proposer's effects on its links and on the primary; owns the pause of a candidate.

    post(event)     steps the core and performs what it wants, at once and in order

It is deterministic. Clock, randomness, sockets and PostgreSQL are ports; the simulator runs this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeAlias, assert_never

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import Answering, FastStream, Feeding
from walkeeper_proposer.bunches import Bunches
from walkeeper_proposer.consensus.expected_stream import ExpectedStream, expected_stream
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
    PauseStreaming,
    ReadPrimary,
    Report,
    ResumeStreaming,
    RetainWal,
    Send,
    StartStreaming,
    Stop,
    StreamTaken,
    WalArrived,
)

ANNOUNCE_S = 0.01  # later than most next commits, sooner than users of a standby would notice
BUNCH_S = 0.005  # the most time for which WAL is kept back from one safekeeper
SETTLE_S = 0.002  # how much later the core may learn of what the fast path did, or ANNOUNCE_S
BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 2.0


MakeFastStream: TypeAlias = Callable[[ExpectedStream, Sequence[Answering]], FastStream]


class Links(Protocol):
    """Connections to the safekeepers; LinkUp, LinkLost and Received come back as events."""

    def send(self, link: int, message: Message) -> None: ...
    def answer(self, link: int) -> Feeding | None:
        """Return the link's connection for the fast path, or None if it is down."""
        ...

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
    def stream_first(self, stream: FastStream, /) -> None:
        """Give WAL to this fast path before WalArrived, and let it report, until its end."""
        ...

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
        fast: MakeFastStream | None = None,
        bunches: Bunches | None = None,
    ) -> None:
        """Make a driver; with `announce_s` 0, standbys learn of each commit at once.

        Without `fast`, all WAL and all acks take the slow path, and there are no bunches."""
        self.core, self._announce_s = core, announce_s
        self._make_fast = fast
        self._links, self._primary, self._around = links, primary, around
        self.waiting: deque[Event] = deque()
        self.is_running = False  # then events wait
        self._fast: FastStream | None = None  # while no other event comes
        self._bunches = bunches or Bunches()
        self._may_wait: Sequence[int] = ()
        self._is_settling = False  # the core learns soon of what the fast path has done
        self._is_announcing = False  # AnnounceDue comes soon, and the core learns of it then
        self.has_standbys = False

    def acknowledge_at_once(self, link: int, memory: bytearray, size: int) -> int:
        """Report received acks to the primary, without a step in between.

        This is the fast path of `post`. Return `size`, or 0, with no effect, if `post` has to
        handle the messages in `memory[:size]`. While the fast path goes on, the link's connection
        and the primary's shell call it themselves."""
        fast = None if self.is_running else self._fast or self._begin_fast()
        return 0 if fast is None else fast.acknowledge(link, memory, size)

    def report(self, commit_lsn: int, feedback: Sequence[Feedback]) -> None:
        """Report for the fast path."""
        self._primary.report(Lsn(commit_lsn), feedback)

    def _begin_fast(self) -> FastStream | None:
        expected = expected_stream(self.core) if self._make_fast is not None else None
        if self._make_fast is None or expected is None:
            return None
        answers = [self._links.answer(link) for link in expected.links]
        connections = [answer for answer in answers if answer is not None]
        if len(connections) == len(answers):  # else a lost link is about to be posted
            self._fast = fast = self._make_fast(expected, connections)
            self.has_standbys = any(feedback.apply_lsn for feedback in expected.feedback)
            fast.lead(self)
            self._may_wait = expected.may_wait
            self._bunch(fast)
            for link, connection in zip(expected.links, connections, strict=True):
                connection.receive_first(partial(fast.acknowledge, link))
            self._primary.stream_first(fast)
        return self._fast

    def on_news(self) -> None:
        """Let the core learn of the fast path's work within SETTLE_S, or before any other event.

        AnnounceDue is such an event: while it is awaited, no other timer wakes the loop (0051). The
        core learns at once if standbys are to learn of each commit at once."""
        if self._announce_s == 0.0:
            self._hear_fast()
        elif not self._is_settling and not self._is_announcing:
            self._is_settling = True
            self._around.after(SETTLE_S, self._settle)

    def on_bunch(self) -> None:
        """Let the link that gets bunches have its WAL soon."""
        self._around.after(BUNCH_S, partial(self._release_bunch, self._fast))

    def _release_bunch(self, fast: FastStream | None) -> None:
        if fast is not None and fast is self._fast:
            appends, was_needed = fast.release()
            self._bunches.judge(appends, was_needed=was_needed)
            self._bunch(fast)

    def _bunch(self, fast: FastStream) -> None:
        """Send WAL in bunches to the link that was chosen, if the others commit without it."""
        link = self._bunches.link
        fast.bunch_for(link if link in self._may_wait else None)

    def on_idle(self) -> None:
        """Let the core learn of a commit at once: its standbys wait, and no append will tell."""
        self._hear_fast()

    def _settle(self) -> None:
        self._is_settling = False
        self._hear_fast()
        if not self.is_running:
            self._run(())

    def _announce(self) -> None:
        """Let the core announce commit_lsn, unless all that it would do is ask for this again."""
        fast = None if self.is_running else self._fast
        if fast is not None and self._bunches.link is None:
            self._bunches.learn(*fast.behind_commits(), self._may_wait)
            self._bunch(fast)
        if fast is not None and fast.puts_off():
            self._around.after(self._announce_s, self._announce)
            return
        self._is_announcing = False
        self.post(AnnounceDue())

    def _hear_fast(self) -> None:
        """Queue what the fast path has done, as an event of its own."""
        news = None if self._fast is None else self._fast.settled()
        if self._fast is not None and news is not None:
            commit_lsn, sent_commit_lsn, sent, acks = news
            taken = (commit_lsn, Lsn(sent_commit_lsn), sent, acks, self._fast.owed_lsn)
            self.waiting.append(StreamTaken(*taken))

    def _step(self, event: Event) -> Sequence[Effect]:
        if type(event) is not StreamTaken and type(event) is not AnnounceDue:
            self._end_fast()
        return self.core.step(event)

    def _end_fast(self) -> None:
        """End what the template allows, for all that have the fast path."""
        if self._fast is not None:
            self._fast.end()
            self._fast = None

    def run_waiting(self) -> None:
        """Step the core with the events that came during the fast path."""
        self._run(())

    def post(self, event: Event) -> None:
        """Step the core with this event, after those that came before."""
        if self.is_running:  # an effect posted an event: the loop below takes it up
            self._hear_fast()
            self.waiting.append(event)
            return
        if type(event) is WalArrived:
            fast = self._fast or self._begin_fast()
            if fast is not None and fast.stream(event.begin_lsn, event.wal):
                return
        self._hear_fast()
        self.waiting.append(event)
        self._run(())

    def _run(self, effects: Iterable[Effect]) -> None:
        self.is_running = True
        try:
            for effect in effects:
                self._perform(effect)
            while self.waiting:
                for effect in self._step(self.waiting.popleft()):
                    self._perform(effect)
        finally:
            self.is_running = False

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
                self._is_announcing = True
                if self._fast is not None:
                    self._fast.owe()
                self._around.after(self._announce_s, self._announce)
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
