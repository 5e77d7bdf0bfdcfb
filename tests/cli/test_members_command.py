"""`walkeeper members`: the document, the table, the verdict, and a command that ends in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.status_documents import DOWN, document, line
from tests.consensus.test_pure_member_sets import set_of
from tests.consensus.test_pure_resizing import Any as Few
from walkeeper_admin.log_verdict import judge
from walkeeper_admin.member_sets import have_quorum
from walkeeper_admin.members import (
    Wanted,
    cancel,
    change,
    locate,
    located,
    members_document,
    show,
    table,
)
from walkeeper_admin.status import table as status_table
from walkeeper_admin.status import with_verdict
from walkeeper_cli.program import cli
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.framing import Message
from walkeeper_proposer.member_changes import Limits

SAFEKEEPERS = [("h1", 1), ("h2", 2), ("h3", 3)]
LIMITS = Limits(answer_timeout_s=0.1, timeout_s=1.2)
CHANGE: dict[str, Any] = {
    "members": [1, 2, 3, 4, 5], "ack_quorum": 3, "leaving": [], "joining": [4, 5],
    "bytes_to_go": 7_000,
}  # fmt: skip


def facts(**others: Any) -> dict[str, Any]:
    found: dict[str, Any] = document(line(1), line(2), DOWN)["cluster"]
    return found | {"name": "main", "generation": 2, "ack_quorum": 2, "changing": None} | others


def test_the_document_has_each_set_with_its_quorums() -> None:
    found = members_document(facts(), [line(1), line(2), line(9)])
    assert (found["state"], found["generation"], found["others"]) == ("final", 2, [9])
    assert found["sets"] == [{"members": [1, 2, 3], "ack_quorum": 2, "vote_quorum": 2}]
    assert [each["role"] for each in found["members"]] == ["member"] * 3
    assert found["members"][2]["error"] == "its address was not named with --safekeepers"
    said = table(found)
    assert "generation 2, final: 1, 2, 3: 2 acknowledge a commit, 2 elect" in said
    assert said.endswith("no members: 9")


def held(number: int, first: str, flush: str, lacks: int = 0) -> dict[str, Any]:
    known = {"first_lsn": first, "flush_lsn": flush, "commit_lsn": "0/500", "lacks_bytes": lacks}
    return line(number) | known


def test_which_members_hold_a_range_is_shown() -> None:
    lines = [held(1, "0/100", "0/500"), held(2, "0/100", "0/480"), held(4, "0/300", "0/500", 512)]
    found = members_document(facts(members=["1#a", "2#a", "4#a"]), lines)
    assert found["ranges"] == [
        {"begin_lsn": "0/100", "end_lsn": "0/300", "holders": [1, 2]},
        {"begin_lsn": "0/300", "end_lsn": "0/480", "holders": [1, 2, 4]},
        {"begin_lsn": "0/480", "end_lsn": "0/500", "holders": [1, 4]},
    ]
    for lsn, holders in ((0xFF, []), (0x100, [1, 2]), (0x2FF, [1, 2]), (0x300, [1, 2, 4]),
                         (0x480, [1, 4]), (0x4FF, [1, 4]), (0x500, [])):  # fmt: skip
        assert locate(found, Lsn(lsn)) == holders, f"{lsn:x}"
    assert located(found, Lsn(0x200)) == "0/200: on 1, 2; not on 4"
    assert located(found, Lsn(0x300)) == "0/300: on 1, 2, 4"
    assert located(found, Lsn(0x500)) == "0/500: no member that answers holds it"
    assert "begins at 0/300: 512 bytes of older WAL to copy" in table(found)


@pytest.mark.parametrize("reason", [None, "--fill-rate is 0"])
def test_a_member_that_lacks_wal_says_why_nothing_is_copied(reason: str | None) -> None:
    lines = [held(1, "0/100", "0/500"), held(2, "0/300", "0/500", 512) | {"lacks_reason": reason}]
    found = members_document(facts(members=["1#a", "2#a"]), lines)
    row = next(each for each in table(found).splitlines() if "older WAL to copy" in each)
    assert row.endswith("512 bytes of older WAL to copy" + (f"; {reason}" if reason else ""))
    status = document(*lines)
    how = f"is not copied: {reason}" if reason else "is being copied to it"
    assert f"which other members hold; it {how}" in status_table(with_verdict(status))


def test_while_members_change_both_sets_are_shown() -> None:
    found = members_document(facts(changing=CHANGE), [line(1), line(2), line(4)])
    assert found["state"] == "joint" and found["bytes_to_go"] == 7_000
    assert found["sets"][1] == {"members": [1, 2, 3, 4, 5], "ack_quorum": 3, "vote_quorum": 3}
    assert [each["role"] for each in found["members"]] == ["member"] * 3 + ["joining"] * 2
    assert (
        "and, as the members change, 1, 2, 3, 4, 5: 3 acknowledge a commit, 3 elect; 7,000 bytes "
        "to go"
    ) in table(found)
    replacing = {"leaving": 3, "joining": 4, "bytes_to_go": None}
    found = members_document(facts(replacing=replacing), [line(1)])
    assert [each["members"] for each in found["sets"]] == [[1, 2, 3], [1, 2, 4]]
    assert [each["role"] for each in found["members"]] == ["member", "member", "leaving", "joining"]
    same = members_document(facts(replacing=replacing | {"joining": 3}), [line(1)])
    assert [each["members"] for each in same["sets"]] == [[1, 2, 3], [1, 2, 3]], "another disk"


def test_learners_are_shown_and_block_nothing() -> None:
    learning = CHANGE | {"is_learning": True}
    found = members_document(facts(changing=learning), [line(1), line(2), line(3), line(4)])
    assert found["state"] == "learning" and found["bytes_to_go"] == 7_000
    assert [each["role"] for each in found["members"]] == ["member"] * 3 + ["learner"] * 2
    assert "to be next: 1, 2, 3, 4, 5: 3 acknowledge a commit, 3 elect; 7,000" in table(found)
    replacing = {"leaving": 3, "joining": 4, "bytes_to_go": 9, "is_learning": True}
    found = members_document(facts(replacing=replacing), [line(1), line(4)])
    assert [each["role"] for each in found["members"]] == ["member", "member", "leaving", "learner"]
    for facts_ in ({"changing": learning}, {"replacing": replacing}):
        hanging = document(line(1), DOWN, DOWN)
        hanging["cluster"] |= {"changing": None, "quorum": False, "proposer": None, **facts_}
        said = judge(hanging).text
        assert "no quorum: commits hang; blocked by" in said
        assert "safekeeper 4" not in said and "cancel" not in said, said


def test_the_verdict_tells_of_a_change() -> None:
    found = document(line(1), line(2), line(3))
    found["cluster"] |= {"quorum": True, "changing": CHANGE, "proposer": {"name": "walkeeper"}}
    said = "the members change to 1, 2, 3, 4, 5 (ack quorum 3), 7,000 bytes to go"
    assert judge(found).text == f"degraded: {said}, commits go on"
    found["cluster"]["changing"] = CHANGE | {"bytes_to_go": None}
    assert "(ack quorum 3), 4, 5 have not all joined yet" in judge(found).text
    found["cluster"]["changing"] = CHANGE | {"joining": []}
    assert judge(found).text.startswith("degraded: the members change to 1, 2, 3, 4, 5 (ack quorum")
    found["cluster"]["quorum"] = False
    said = judge(found).text
    assert "no quorum: commits hang; blocked by a newcomer; the members change to" in said
    assert said.endswith("`walkeeper members cancel` takes that back")


def test_a_quorum_of_each_set_has_to_serve() -> None:
    known = {"members": ["1#a", "2#a", "3#a"], "ack_quorum": 2, "leaving": None, "joining": None}
    target = {"members": ["1#a", "2#a", "3#a", "4#a", "5#a"], "ack_quorum": 3}
    assert have_quorum(known, {"1#a", "2#a"})
    assert not have_quorum(known | {"target": target}, {"1#a", "2#a"})
    assert have_quorum(known | {"target": target}, {"1#a", "2#a", "5#a"})
    learning = target | {"is_learning": True}
    assert have_quorum(known | {"target": learning}, {"1#a", "2#a"})
    assert not have_quorum(known | {"target": learning}, {"1#a", "4#a", "5#a"})
    older = known | {"leaving": "3#a", "joining": "4#a"}
    assert not have_quorum(older, {"1#a", "3#a"}) and have_quorum(older, {"1#a", "3#a", "4#a"})


def run(few: Few, wanted: Wanted | None, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """Run the change, or the cancel, on `few`, by the ports of its addresses."""

    async def ask(address: Address, question: Message, timeout_s: float) -> Message:
        answer = few.answer(address[1], question)
        if answer is None:
            raise Unreachable(f"safekeeper at {address[0]} is unreachable")
        return answer

    monkeypatch.setattr("walkeeper_proposer.member_changes.ask", ask)
    if wanted is None:
        return asyncio.run(cancel(SAFEKEEPERS, "main", LIMITS, lambda _: None))
    return asyncio.run(change(SAFEKEEPERS, "main", wanted, LIMITS, lambda _: None))


def test_members_are_added_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Few(3)
    made = run(few, Wanted((), ((4, ("h4", 4), ""), (5, ("h5", 5), ""))), monkeypatch)
    assert made.present == set_of(3, 1, 2, 3, 4, 5) and made.address == "4@h4:4,5@h5:5"
    with pytest.raises(Refused, match="name each newcomer once"):
        run(few, Wanted((), ((6, ("h6", 6), ""), (6, ("h7", 7), ""))), monkeypatch)


def test_a_command_that_gives_up_names_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Few(3, has_leader=False)
    with pytest.raises(Refused) as refused:
        run(few, Wanted(ack_quorum=3), monkeypatch)
    assert str(refused.value).endswith(
        "a change of members is under way, 1, 2, 3 (ack quorum 2) to 1, 2, 3 (ack quorum 3) "
        "(generation 2), and commits need both sets of members; the same command goes on from "
        "here, `walkeeper members cancel` keeps the old members"
    )
    assert run(few, None, monkeypatch).present == set_of(2, 1, 2, 3)


def test_without_a_log_there_is_nothing_to_show() -> None:
    with pytest.raises(Refused, match="none of these safekeepers has a log of cluster 'main'"):
        asyncio.run(show([("127.0.0.1", 1)], "main", 0.5))


def test_the_command_line_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALKEEPER_SAFEKEEPERS", raising=False)
    runner = CliRunner()
    at = ["--safekeepers", "127.0.0.1:1"]
    for words, text in (
        (["members"], "Missing option '--safekeepers'"),
        (["members", "add", *at], "Missing argument 'ID@HOST:PORT...'"),
        (["members", "add", "four", *at], "'four' is not ID@HOST:PORT"),
        (["members", "set-ack-quorum", "0", *at], "0 is not in the range"),
        (["members", "--help"], "set-ack-quorum"),
    ):
        assert text in runner.invoke(cli, words).output, words


def test_what_is_printed_for_programs_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Few(3)

    async def performed(*_: object) -> Configuration:
        return few.newest()

    monkeypatch.setattr("walkeeper_admin.members.change", performed)
    words = ["members", "set-ack-quorum", "2", "--safekeepers", "127.0.0.1:1"]
    said = CliRunner().invoke(cli, [*words, "--json"])
    assert json.loads(said.stdout) == {
        "cluster": "main", "generation": 1, "members": [1, 2, 3], "ack_quorum": 2, "vote_quorum": 2,
    }  # fmt: skip
    said = CliRunner().invoke(cli, words)
    assert "members are 1, 2, 3 (generation 1), ack quorum 2" in said.stdout
