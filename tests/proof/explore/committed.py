"""The WAL that was ever committed, and the four ways in which a run can break with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.proof.explore.interned import Interned
from tests.proof.explore.tiny_wal import HOLE, begin_of
from tests.proof.sim.oracle import Violation
from walkeeper_common.history import Ballot


@dataclass(frozen=True, slots=True)
class Chain:
    """One log. `ends` has how far each ballot committed it first; both parts ascend.

    `closed` has the ballot and the WAL of the first close that was reported."""

    wal: bytes = b""
    ends: tuple[tuple[Ballot, int], ...] = ()
    closed: tuple[Ballot, bytes] | None = None

    def committed(self, ballot: Ballot, wal: bytes) -> Chain:
        """Let a leader report whole records to PostgreSQL; raise Violation if they differ."""
        self._compare(f"the leader {ballot}", wal)
        if HOLE in wal:
            raise Violation("Acknowledged", f"{ballot} commits behind WAL that no voter holds")
        if self.closed is not None and len(wal) > len(self.closed[1]):
            raise Violation("Closed", f"{ballot} commits {wal.hex()} behind {self.closed}")
        known = max((end for b, end in self.ends if b <= ballot), default=0)
        if len(wal) <= known:
            return self
        ends = [(b, e) for b, e in self.ends if b < ballot or e > len(wal)]
        longer = wal if len(wal) > len(self.wal) else self.wal
        return Chain(longer, tuple(sorted([*ends, (ballot, len(wal))])), self.closed)

    def reported_closed(self, ballot: Ballot, wal: bytes) -> Chain:
        """Let a command report that the log is closed behind this WAL.

        Raise Violation if more was committed, or if another end was reported."""
        self._compare(f"the close of {ballot}", wal)
        if len(wal) < len(self.wal):
            raise Violation("Closed", f"{ballot} closes behind {wal.hex()}, not {self.wal.hex()}")
        if self.closed is None:
            return replace(self, closed=(ballot, wal))
        if self.closed[1] != wal:
            raise Violation("Closed", f"{ballot} closes behind {wal.hex()}, not {self.closed}")
        return self

    def shown(self, wal: bytes) -> Chain:
        """Let a safekeeper show these whole records to readers.

        Raise Violation if any is not committed.
        """
        self._compare("a safekeeper", wal)
        if len(wal) > len(self.wal):
            text = f"a safekeeper shows {wal.hex()}, committed is {self.wal.hex()}"
            raise Violation("Reading", text)
        return self

    def elected(self, ballot: Ballot, wal: bytes, *, writes: bool = True) -> Chain:
        """Let a new leader go on from `wal`.

        Raise Violation if it lacks WAL that smaller ballots committed, or if it writes to a log
        whose close was reported.
        """
        if writes and self.closed is not None and ballot > self.closed[0]:
            raise Violation("Closed", f"{ballot} was elected to write behind {self.closed}")
        needed = max((end for b, end in self.ends if b < ballot), default=0)
        if wal[:needed] != self.wal[:needed]:
            raise Violation(
                "Acknowledged",
                f"{ballot} was elected with {wal.hex() or 'nothing'}, "
                f"lost is what was committed: {self.wal[:needed].hex()}",
            )
        return self

    def _compare(self, who: str, wal: bytes) -> None:
        common = min(len(wal), len(self.wal))
        begin = begin_of(wal[:common])  # a log that begins late says nothing of what is below
        if wal[begin:common] != self.wal[begin:common]:
            text = f"{who} commits {wal.hex()}, committed was {self.wal.hex()}: a fork"
            raise Violation("Committed", text)


class Chains:
    """Chains by number; each question to each chain is answered once."""

    def __init__(self) -> None:
        self._chains: Interned[Chain] = Interned()
        self._answers: dict[tuple[object, ...], int | Violation] = {}
        self.empty = self._chains.number(Chain())

    def committed(self, chain: int, ballot: Ballot, wal: bytes) -> int:
        return self._ask((chain, ballot, wal), lambda it: it.committed(ballot, wal))

    def shown(self, chain: int, wal: bytes) -> int:
        return self._ask((chain, wal), lambda it: it.shown(wal))

    def elected(self, chain: int, ballot: Ballot, wal: bytes, *, writes: bool = True) -> int:
        key = (chain, ballot, "elected", wal, writes)
        return self._ask(key, lambda it: it.elected(ballot, wal, writes=writes))

    def closed(self, chain: int, ballot: Ballot, wal: bytes) -> int:
        return self._ask((chain, ballot, "closed", wal), lambda it: it.reported_closed(ballot, wal))

    def ballots(self, chain: int) -> set[Ballot]:
        known = self._chains.values[chain]
        closed = {known.closed[0]} if known.closed is not None else set()
        return {ballot for ballot, _ in known.ends} | closed

    def _ask(self, key: tuple[object, ...], question: Callable[[Chain], Chain]) -> int:
        """Return the number of the chain after `question`, or raise Violation."""
        answer = self._answers.get(key)
        if answer is None:
            chain = key[0]
            assert isinstance(chain, int)
            try:
                answer = self._chains.number(question(self._chains.values[chain]))
            except Violation as violation:
                answer = violation
            self._answers[key] = answer
        if isinstance(answer, Violation):
            raise answer
        return answer
