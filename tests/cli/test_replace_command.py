"""`walkeeper replace` names silent safekeepers, ends in time, and says how to go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace as changed
from itertools import count

import pytest

from tests.consensus.few_members import Few
from tests.support.replaced_members import BOTH
from tests.support.waiting import LIMIT_S
from walkeeper_admin.replace import Newcomer, cancel, replace
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_proposer.member_changes import Limits


def test_a_safekeeper_without_an_answer_is_named_with_the_reason() -> None:
    """One has a newer version perhaps, and one is down."""

    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x02zz")
        writer.close()

    async def body() -> str:
        async with await asyncio.start_server(garbage, "127.0.0.1", 0) as server:
            strange: Address = server.sockets[0].getsockname()
            newcomer = Newcomer(1, 4, ("127.0.0.1", 1))
            limits = Limits(answer_timeout_s=LIMIT_S, timeout_s=1.5)
            with pytest.raises(Refused) as refused:
                await replace((strange,), "main", newcomer, limits, lambda _: None)
            return str(refused.value).replace(f"{strange[1]}", "STRANGE")

    said = asyncio.run(body())
    assert "127.0.0.1:STRANGE does not speak walkeeper's protocol: unknown message tag 0x7a" in said
    assert "safekeeper at 127.0.0.1:1 is unreachable: " in said
    assert said.startswith("no progress for 1.5 s: no safekeeper with this log answers (")


SAFEKEEPERS = [("h1", 1), ("h2", 2), ("h3", 3)]
LIMITS = Limits(answer_timeout_s=0.1, timeout_s=1.2)


def joint_members(down: set[int]) -> Few:
    few = Few(has_leader=False)
    for number in (1, 2, 3):
        durable = few.held[number]
        assert durable is not None
        few.held[number] = changed(durable, configuration=BOTH)
    few.down = down
    return few


def ending(few: Few, newcomer: Newcomer | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the command on `few`, by the ports of its addresses; return its error."""

    async def ask(address: Address, question: Message, timeout_s: float) -> Message:
        answer = few.answer(address[1], question)
        if answer is None:
            raise Unreachable(f"safekeeper at {address[0]} is unreachable")
        return answer

    monkeypatch.setattr("walkeeper_proposer.member_changes.ask", ask)
    with pytest.raises(Refused) as refused:
        if newcomer is None:
            asyncio.run(cancel(SAFEKEEPERS, "main", None, LIMITS, lambda _: None))
        else:
            asyncio.run(replace(SAFEKEEPERS, "main", newcomer, LIMITS, lambda _: None))
    return str(refused.value)


def test_the_end_says_what_stands_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ending(joint_members({4}), Newcomer(3, 4, ("h4", 4)), monkeypatch)
    assert said == (
        "no progress for 1.2 s: safekeeper 4 at h4:4 does not answer (safekeeper at h4 is "
        "unreachable); a replacement is under way, "
        "3 by 4 at h4:5454 (generation 2), and commits need both sets of members; the same command "
        "goes on from here, --instead gives up the newcomer, --cancel keeps the old members"
    )
    said = ending(joint_members({2, 3}), None, monkeypatch)
    assert said.startswith("no progress for 1.2 s: too few members answer: not 2, 3 (")


def test_two_waits_by_turns_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose reason to wait changed all the time never gave up."""

    class Fickle(Few):
        asked = count()

        def answer(self, number: int, ask: Message) -> Message | None:
            text = f"a log by turns {next(self.asked) // 3 % 2}"
            return Reject(RejectCode.UNKNOWN_LOG, text, NO_BALLOT)

    said = ending(Fickle(), None, monkeypatch)
    assert said.startswith("no progress for 1.2 s: no safekeeper with this log answers; a log by")
    assert said.endswith("; the same command goes on from here")
