"""A safekeeper's reports to the proposer of a logical log about its consumers. Pure.

The proposer writes the positions of all slots into the log (docs/logical.md), so a quorum keeps
them and every safekeeper learns them. News are repeated until the log shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.fields import Reader, Writer

NEWS_MAX = 1024


@dataclass(frozen=True, slots=True)
class SlotNews:
    """A consumer has everything below `lsn`, or its slot was dropped if `lsn` is None.

    `is_new` says that the slot was made, and that `lsn` is the end that its safekeeper knew to be
    committed. Others may know a later end.
    """

    name: str
    lsn: Lsn | None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerSlots:
    """From a safekeeper to the proposer that leads it; never answered."""

    TAG: ClassVar[int] = ord("k")
    news: tuple[SlotNews, ...]

    def pack(self, w: Writer) -> None:
        w.u16(len(self.news))
        for one in self.news:
            w.text(one.name)
            w.optional_lsn(one.lsn)
            w.boolean(one.is_new)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        count = r.u16()
        if count > NEWS_MAX:
            raise RemoteProtocolError(f"news of {count} slots")
        return cls(tuple(SlotNews(r.text(), r.optional_lsn(), r.boolean()) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class TablesQuery:
    """From a safekeeper to the proposer that leads it: which tables are published now?

    The answer is a settings entry with these tokens, so that a quorum has it. The query is repeated
    until the log has the answer.
    """

    TAG: ClassVar[int] = ord("l")
    tokens: tuple[str, ...]

    def pack(self, w: Writer) -> None:
        w.u16(len(self.tokens))
        for token in self.tokens:
            w.text(token)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        count = r.u16()
        if count > NEWS_MAX:
            raise RemoteProtocolError(f"{count} queries for tables")
        return cls(tuple(r.text() for _ in range(count)))


def after(
    slots: dict[str, Lsn], news: tuple[SlotNews, ...], *, end_lsn: Lsn = ZERO_LSN
) -> dict[str, Lsn]:
    """Return the slots with the news applied.

    Positions only go forward, and no news revives a slot. A slot that is not known begins at
    `end_lsn`, the log's end. Repeated news does not move it.
    """
    found = dict(slots)
    for one in news:
        if one.lsn is None:
            found.pop(one.name, None)
        elif one.name in found or one.is_new:
            found[one.name] = max(one.lsn, found.get(one.name, end_lsn))
    return found
