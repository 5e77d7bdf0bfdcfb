"""The WAL that was ever committed, and the three ways in which a run can break with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.proof.explore.interned import Interned
from tests.proof.explore.tiny_wal import HOLE, begin_of
from tests.proof.sim.oracle import Violation
from walkeeper_common.history import Ballot


@dataclass(frozen=True, slots=True)
class Chain:
    """One log. `ends` has how far each ballot committed it first; both parts ascend."""

    wal: bytes = b""
    ends: tuple[tuple[Ballot, int], ...] = ()

    def committed(self, ballot: Ballot, wal: bytes) -> Chain:
        """Let a leader report whole records to PostgreSQL; raise Violation if they differ."""
        self._compare(f"the leader {ballot}", wal)
        if HOLE in wal:
            raise Violation("Acknowledged", f"{ballot} commits behind WAL that no voter holds")
        known = max((end for b, end in self.ends if b <= ballot), default=0)
        if len(wal) <= known:
            return self
        ends = [(b, e) for b, e in self.ends if b < ballot or e > len(wal)]
        longer = wal if len(wal) > len(self.wal) else self.wal
        return Chain(longer, tuple(sorted([*ends, (ballot, len(wal))])))

    def shown(self, wal: bytes) -> Chain:
        """Let a safekeeper show these whole records to readers.

        Raise Violation if any is not committed.
        """
        self._compare("a safekeeper", wal)
        if len(wal) > len(self.wal):
            text = f"a safekeeper shows {wal.hex()}, committed is {self.wal.hex()}"
            raise Violation("Reading", text)
        return self

    def elected(self, ballot: Ballot, wal: bytes) -> Chain:
        """Let a new leader go on from `wal`.

        Raise Violation if it lacks WAL that smaller ballots committed.
        """
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

    def elected(self, chain: int, ballot: Ballot, wal: bytes) -> int:
        return self._ask((chain, ballot, "elected", wal), lambda it: it.elected(ballot, wal))

    def ballots(self, chain: int) -> set[Ballot]:
        return {ballot for ballot, _ in self._chains.values[chain].ends}

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
