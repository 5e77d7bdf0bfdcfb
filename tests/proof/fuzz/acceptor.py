"""The safekeeper's core under its shipping driver, against any proposers. Two targets.

An input of `acceptor` is a list of events, one a chunk: messages, lost connections, time, disks
that finish, fail or are full, restarts. Promises: no message of a peer makes the core raise. The
ballot never decreases, flush_lsn <= write_lsn, and commit_lsn <= flush_lsn. An answer's facts are
durable when it is sent. No whole committed record is cut. Every answer fits into a frame.

An input of `creation` is the body of a ConfigureLog: refused, or a log that can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.proof.fuzz.acceptor_ports import Jobs, Store, record_end
from tests.proof.fuzz.choices import Choices, chunks
from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.drawn import Scope, check_sendable
from tests.proof.fuzz.framed import frame_of
from tests.proof.fuzz.mutation import chunked, havoc
from tests.support.frames import give
from tests.support.scenario_words import CREATION_LSN, LOG_UUID, configuration_of, incarnation_of
from walkeeper_common.errors import CorruptWal, Refused, RemoteProtocolError, StorageError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import Message, decode
from walkeeper_common.wire.messages import (
    AppendResponse,
    Feedback,
    Reject,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.requests import ConfigureLog, PrepareLog
from walkeeper_fastpath.switch import append_path
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    ConnectionLost,
    Received,
    SegmentsRemoved,
    StandbysReported,
    Tick,
)
from walkeeper_safekeeper.consensus.creation import configured, prepared
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.replication.replication_answers import major_version
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage import control_file
from walkeeper_safekeeper.storage.wal_store import SegmentNotAllocated

CHUNK = 16
CONNECTIONS = 4
MESSAGES_OF_PROPOSERS = 9


@dataclass
class Seen:
    """Facts of the step before."""

    ballot: Ballot
    commit_lsn: Lsn
    truncations: int


class Story:
    """The driver's Surroundings, and whatever happens to one log."""

    def __init__(self, choices: Choices) -> None:
        configuration = configuration_of(3)
        asked = PrepareLog("main", LOG_UUID)
        fresh = prepared(None, asked, acceptor_id=1, incarnation=incarnation_of(1))
        self.saved = configured(fresh, configuration)
        self.scope = Scope(configuration)
        self.store = Store(CREATION_LSN + 8 * choices.byte())
        self.numbers = list(range(CONNECTIONS))
        self.is_over = False
        self._open()

    def _open(self) -> None:
        """Open the acceptor as LogFolder.open_wal leaves it."""
        saved, store = self.saved, self.store
        bound = store.end_lsn if saved.truncating_to is None else saved.truncating_to
        flush_lsn = record_end(min(store.end_lsn, bound))
        reached_lsn = min(saved.reached_lsn, bound)
        if flush_lsn < max(reached_lsn, record_end(min(saved.commit_lsn, bound))):
            self.is_over = True  # recovery refuses this log
            return
        store.end_lsn, store.has_tail = flush_lsn, False
        self.saved = replace(
            saved,
            commit_lsn=min(saved.commit_lsn, flush_lsn),
            reached_lsn=reached_lsn,
            truncating_to=None,
            suspect_from=None,
            clean_stop=False,
        )
        # WAL that was committed and not made durable is the quorum's business, not this acceptor's.
        store.committed_lsn = self.saved.commit_lsn
        self.acceptor = Acceptor(
            self.saved, oldest_lsn=store.first_lsn, flush_lsn=flush_lsn, record_lsn=flush_lsn
        )
        self.writer, self.reader, self.allocator = Jobs(), Jobs(), Jobs()
        self.driver = Driver(
            self.acceptor,
            store,  # type: ignore[arg-type]  # as much as is used
            self._save,
            writer=self.writer,
            reader=self.reader,
            allocator=self.allocator,
            around=self,
            fast=append_path(),
        )
        self._look()

    def _save(self, durable: Durable) -> None:
        require(
            durable.ballot >= self.saved.ballot,
            "durable.ballot={} self.saved.ballot={}",
            durable.ballot,
            self.saved.ballot,
        )
        self.store._fail()
        self.saved = durable

    # The driver's Surroundings

    def send(self, connection: int, message: Message) -> None:
        check_sendable(message)
        match message:
            case VoteResponse():
                said = message.ballot
                require(message.flush_lsn <= self.store.end_lsn, "{} is not durable", message)
            case AppendResponse():
                said = message.ballot
                require(message.flush_lsn <= self.store.end_lsn, "{} is not durable", message)
                durable_lsn = self.saved.commit_lsn
                require(
                    message.durable_commit_lsn <= durable_lsn,
                    "{} durable_lsn={}",
                    message,
                    durable_lsn,
                )
            case Reject():
                said = message.ballot
            case _:
                return
        require(said <= self.saved.ballot, "{} before its ballot is durable", message)

    def commit_moved(self, commit_lsn: Lsn) -> None:
        require(
            commit_lsn <= self.store.end_lsn,
            "commit_lsn={} self.store.end_lsn={}",
            commit_lsn,
            self.store.end_lsn,
        )

    def settle_later(self, settle: Callable[[], None]) -> None:
        settle()

    def end_readers(self, above_lsn: Lsn) -> None:
        self.store.committed_lsn = min(self.store.committed_lsn, above_lsn)

    def note(self, text: str, facts: Sequence[tuple[str, object]], *_: object) -> None:
        pass

    # The story

    def tell(self, choices: Choices) -> None:
        match choices.below(24):
            case 0 | 1 | 2 | 3:
                self.writer.finish_one()
            case 4:
                self.reader.finish_one()
            case 5:
                self.allocator.finish_one()
            case 6:
                self.driver.post(Tick())
            case 7:
                self._lose(choices.below(CONNECTIONS))
            case 8 if choices.one_in(3):
                self.driver.post(StandbysReported(Feedback(self.scope.lsn(choices), 1, 2)))
            case 8:
                self._misfortune(choices)
            case _:
                number = self.numbers[choices.below(CONNECTIONS)]
                give(self.driver, number, self.send, self._message(choices))
        self._check()

    def _lose(self, connection: int) -> None:
        self.driver.post(ConnectionLost(self.numbers[connection]))
        self.numbers[connection] += CONNECTIONS

    def _misfortune(self, choices: Choices) -> None:
        match choices.below(6):
            case 0:
                self.store.fails = StorageError("Input/output error")
            case 1:
                self.store.fails = SegmentNotAllocated("no space", self.store.end_lsn)
            case 2:
                self.store.fails = CorruptWal("damaged")
            case 3:
                self.driver.post(SegmentsRemoved(CREATION_LSN + choices.byte()))
            case _:
                self.store.fails = None
                self._open()

    def _message(self, choices: Choices) -> Message:
        scope, acceptor = self.scope, self.acceptor
        ballot = acceptor.durable.ballot
        scope.history = acceptor.durable.history
        scope.lsns = [
            acceptor.write_lsn,
            acceptor.flush_lsn,
            record_end(acceptor.flush_lsn),
            acceptor.commit_lsn,
            *(entry.start_lsn for entry in scope.history[-2:]),
        ]
        scope.ballots = [ballot, Ballot(ballot.term + 1, b"c" * 16) if ballot.term < 99 else ballot]
        match choices.below(MESSAGES_OF_PROPOSERS):
            case 0:
                return scope.proposer_greeting(choices)
            case 1:
                return scope.vote_request(choices, acceptor.member)
            case 2 | 3:
                return scope.elected(choices, ballot)
            case 4 | 5 | 6:
                return scope.append(choices, ballot, acceptor.write_lsn)
            case 7:
                return scope.read(choices)
            case _:
                return scope.reject(choices)

    # Promises

    def _look(self) -> None:
        acceptor = self.acceptor
        self._seen = Seen(acceptor.durable.ballot, acceptor.commit_lsn, acceptor.truncations)

    def _check(self) -> None:
        acceptor, seen = self.acceptor, self._seen
        if self.is_over:
            return
        ballot, commit_lsn = acceptor.durable.ballot, acceptor.commit_lsn
        require(
            ballot >= seen.ballot or ballot == self.saved.ballot,
            "I1: ballot={} seen={}",
            ballot,
            seen,
        )
        require(
            acceptor.flush_lsn <= acceptor.write_lsn,
            "I2: acceptor.flush_lsn={}",
            acceptor.flush_lsn,
        )
        require(
            commit_lsn <= acceptor.flush_lsn,
            "I3: commit_lsn={} acceptor.flush_lsn={}",
            commit_lsn,
            acceptor.flush_lsn,
        )
        moved_back = commit_lsn < seen.commit_lsn and acceptor.truncations == seen.truncations
        require(not moved_back, "commit_lsn={} seen={}", commit_lsn, seen)
        require(
            acceptor.durable.history[0].start_lsn == CREATION_LSN,
            "acceptor.durable={}",
            acceptor.durable,
        )
        self.store.committed_lsn = max(self.store.committed_lsn, commit_lsn)
        self._look()


def run_acceptor(data: bytes) -> None:
    first, *steps = chunks(data, CHUNK) or [b""]
    story = Story(Choices(first))
    for step in steps:
        if not story.is_over:
            story.tell(Choices(step))


def run_creation(data: bytes) -> None:
    """Take a ConfigureLog's body: Refused, or a log whose answers fit into frames and files."""
    try:
        ask = decode(ConfigureLog.TAG, memoryview(data))
    except RemoteProtocolError:
        return
    assert isinstance(ask, ConfigureLog)
    configuration = ask.configuration
    prepare = PrepareLog("main", configuration.log_uuid)
    fresh = prepared(None, prepare, acceptor_id=1, incarnation=incarnation_of(1))
    try:
        durable = configured(fresh, configuration)
    except Refused as error:
        require(len(str(error)) < 10_000, "len(str(error))={}", len(str(error)))
        return
    require(
        control_file.decode(control_file.encode(durable), "control") == durable,
        "durable={}",
        durable,
    )
    require(major_version(configuration.server_version) >= 0, "configuration={}", configuration)
    start = configuration.creation_lsn
    acceptor = Acceptor(durable, oldest_lsn=start, flush_lsn=start, record_lsn=start)
    ballot = Ballot(1, b"p" * 16)
    generation = configuration.generation % 2**32
    vote = VoteRequest(generation, ballot, durable.log_uuid, acceptor.member)
    for effect in acceptor.step(Received(1, vote)):
        message = getattr(effect, "message", None)
        if message is not None:
            check_sendable(message)


# Events of an honest proposer: the kind of message behind a connection, then choices of `drawn`.
WORKS, SAYS = 0, 9
GREETS, VOTES, ELECTS, APPENDS, READS = 0, 1, 2, 4, 7
NEXT_BALLOT = bytes([0, 0, 0, 1])
FROM_FLUSH_LSN = bytes([0, 1, 2])


def _event(kind: int, *more: int | bytes) -> bytes:
    tail = b"".join(m if isinstance(m, bytes) else bytes([m]) for m in more)
    return (bytes([kind]) + tail).ljust(CHUNK, b"\0")


def term(connection: int) -> bytes:
    """Make a vote, an election, three appends of which the last one commits the others, a read."""
    works = _event(WORKS) * 2
    return (
        _event(SAYS, connection, GREETS)
        + _event(SAYS, connection, VOTES, NEXT_BALLOT)
        + works
        + _event(SAYS, connection, ELECTS, FROM_FLUSH_LSN)
        + works * 2
        + _event(SAYS, connection, APPENDS, 0, 0, 5)
        + works
        + _event(SAYS, connection, APPENDS, 0, 0, 6, 0, 0, 0, 1, 3)
        + works
        + _event(SAYS, connection, APPENDS, 0, 0, 0, 0, 0, 0, 1, 3)
        + _event(SAYS, connection, READS)
        + _event(4)
    )


def _acceptor_seeds() -> Iterable[bytes]:
    head = bytes([0]).ljust(CHUNK, b"\0")
    restart = _event(8, 0, 5)
    yield head + term(0)
    yield head + term(0) + term(1)
    yield head + term(0) + term(1).replace(FROM_FLUSH_LSN, bytes([0, 2, 2]))
    yield head + term(0) + restart + term(1)
    yield bytes([9]).ljust(CHUNK, b"\0") + term(2) + restart + term(0)
    for seed in range(10):
        random = Random(seed)
        yield b"".join(
            bytes([random.choice((0, 0, 4, 9, 9, 9, 9))]) + random.randbytes(CHUNK - 1)
            for _ in range(2 + seed)
        )


def _creation_seeds() -> Iterable[bytes]:
    for members in (1, 3, 5):
        yield frame_of(ConfigureLog("main", configuration_of(members)))[5:]


def alter_creation(data: bytes, random: Random) -> bytes:
    """Change one field to another value."""
    try:
        ask = decode(ConfigureLog.TAG, memoryview(data))
    except RemoteProtocolError:
        ask = ConfigureLog("main", configuration_of(3))
    assert isinstance(ask, ConfigureLog)
    name, size = random.choice(
        (
            ("generation", 8),
            ("ack_quorum", 1),
            ("timeline", 4),
            ("creation_lsn", 8),
            ("system_id", 8),
            ("server_version", 0),
        )
    )
    old = getattr(ask.configuration, name)
    if isinstance(old, str):
        new: Any = havoc(old.encode(), random).decode("utf-8", "replace")[:500]
    else:
        changed = havoc(old.to_bytes(size, "big"), random)[-size:]
        new = type(old)(int.from_bytes(changed, "big"))
    return frame_of(replace(ask, configuration=replace(ask.configuration, **{name: new})))[5:]


def repair_creation(data: bytes, random: Random) -> bytes:
    """Restore the uuid and the members' names, which most changes must leave alone."""
    try:
        ask = decode(ConfigureLog.TAG, memoryview(data))
    except RemoteProtocolError:
        return data
    assert isinstance(ask, ConfigureLog)
    base = configuration_of(3)
    again = replace(
        ask.configuration,
        members=base.members if random.randrange(8) else ask.configuration.members,
        segment_bytes=1 << 20 if random.randrange(4) else ask.configuration.segment_bytes,
        kind=base.kind,
    )
    return frame_of(ConfigureLog("main", again))[5:]


ACCEPTOR = Target(
    name="acceptor",
    about="the safekeeper's core and driver against any proposers, disks and restarts",
    run=run_acceptor,
    seeds=_acceptor_seeds,
    bytes_max=60 * CHUNK,
    alter=chunked(CHUNK),
)
CREATION = Target(
    name="creation",
    about="a log configured as anybody may ask for",
    run=run_creation,
    seeds=_creation_seeds,
    bytes_max=2048,
    alter=alter_creation,
    repair=repair_creation,
)
