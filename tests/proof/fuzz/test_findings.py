"""Defects that the fuzzer found stay found: one test for each, without the fuzzer."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import click
import pytest

from tests.proof.fuzz.framed import frame_of
from tests.safekeeper.test_proposer_session import OpenDoor
from tests.safekeeper.test_wal_store import ONE_TIMELINE
from tests.support.acceptor_stage import AcceptorStage
from tests.support.proposer_stage import ProposerStage
from tests.support.scenario_words import CREATION_LSN, LOG_UUID, configuration_of, incarnation_of
from tests.support.waiting import until
from walkeeper_cli.program import cli
from walkeeper_common.errors import CorruptWal, Refused
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgwire import QUERY_BYTES_MAX, SqlRefused
from walkeeper_common.postgres.replication_commands import is_empty, parse_command
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.timelines import parse_timeline_file
from walkeeper_common.wire.framing import decode
from walkeeper_common.wire.messages import (
    AcceptorGreeting,
    ProposerGreeting,
    Reject,
    RejectCode,
    VoteRequest,
)
from walkeeper_common.wire.requests import PrepareLog, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.feeding import Feeder
from walkeeper_proposer.consensus.greetings import unwelcome
from walkeeper_proposer.consensus.primary_check import PrimaryCheck, Range, Verdict
from walkeeper_proposer.consensus.progress import Member, Stage
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity, ReadPrimary
from walkeeper_proposer.consensus.proposer_events import Send as SendTo
from walkeeper_proposer.consensus.wal_window import WalWindow
from walkeeper_proposer.postgres.primary import Primary
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import Persist, Received, Send, StorageFailed
from walkeeper_safekeeper.consensus.creation import configured, prepared
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.proposer_session import ProposerSession
from walkeeper_safekeeper.proposer_sessions import PROPOSERS_KNOWN_MAX, ProposerSessions
from walkeeper_safekeeper.replication.physical_slots import Slots
from walkeeper_safekeeper.storage.sealed_file import seal

BALLOT = Ballot(1, b"p" * 16)


# Findings


def acceptor_of_three() -> Acceptor:
    stage = AcceptorStage()
    stage.run("acceptor flush=0/100000")
    return stage.acceptor


def test_a_reject_that_quotes_a_long_name_fits_into_a_frame() -> None:
    """A vote asked of a member whose name has 65535 bytes ended the safekeeper."""
    ask = VoteRequest(1, BALLOT, LOG_UUID, "m" * 65535)
    (answer,) = acceptor_of_three().step(Received(1, ask))
    assert isinstance(answer, Send)
    frame = frame_of(answer.message)
    said = decode(frame[4], memoryview(frame)[5:])
    assert isinstance(said, Reject) and said.code is RejectCode.NOT_A_MEMBER
    assert said.text.startswith("asked as mmmm")


def test_a_reject_is_cut_between_characters_and_survives_odd_file_names() -> None:
    for text in ("ü" * 65535, "x" + "\U0001f40d" * 30000, "file \udcff", "\0" * 70000):
        frame = frame_of(Reject(RejectCode.REFUSED, text, NO_BALLOT))
        said = decode(frame[4], memoryview(frame)[5:])
        assert isinstance(said, Reject)
        assert text.replace("\udcff", "?").startswith(said.text) and len(said.text) >= 6


THREE = configuration_of(3)
NO_LOG_HAS = {
    "generation": replace(THREE, generation=2**32),  # a VoteResponse has 32 bits for it
    "no generation": replace(THREE, generation=0),
    "ack quorum": replace(THREE, ack_quorum=255),  # IndexError at the first acknowledgement
    "no ack quorum": replace(THREE, ack_quorum=0),
    "version": replace(THREE, server_version="PostgreSQL 15"),  # assertion at the next client
    "long version": replace(THREE, server_version="1" * 5000),
    "member": replace(THREE, members=(*THREE.members, "x")),
}


@pytest.mark.parametrize("configuration", NO_LOG_HAS.values(), ids=list(NO_LOG_HAS))
def test_a_configuration_that_no_log_can_have_ends_nobody(configuration: Configuration) -> None:
    """A safekeeper does not adopt it, and a proposer does not follow one that says it has it."""
    fresh = prepared(None, PrepareLog("main", LOG_UUID), acceptor_id=1, incarnation=b"\1" * 16)
    with pytest.raises(Refused):
        configured(fresh, configuration)
    creation = Fragment(NO_BALLOT, CREATION_LSN, 1, False, configuration.members, 2)
    greeting = AcceptorGreeting(
        1, incarnation_of(1), LOG_UUID, configuration, NO_BALLOT, (creation,), CREATION_LSN,
        CREATION_LSN, CREATION_LSN, CREATION_LSN, None,
    )  # fmt: skip
    said = unwelcome(greeting, None, twin=False)
    assert said is not None and "no log can have" in said


def test_a_proposer_that_learns_of_the_last_term_stops_with_a_reason() -> None:
    """A vote for a term that no field can hold was an assertion. History and promise have it."""
    stage = ProposerStage()
    stage.run("proposer a settle=yes take_over=yes")
    last = f"{2**64 - 1}:x"
    history = f"history=0:-@0/100000,{last}@0/100000"
    lines = ["link 1", "link 2", f"greeting 1 flush=0/100000 ballot={last} {history}"]
    for line in lines:
        assert "Stop" not in stage.run(line)
    stopped = stage.run("greeting 2 flush=0/100000")
    assert stopped.startswith(f"Stop refused: no ballot is greater than {2**64 - 1}:"), stopped


def test_a_promise_that_could_not_be_made_durable_is_never_spoken_of() -> None:
    """The Reject after a failed write of the control file named the ballot that was not on disk."""
    acceptor = acceptor_of_three()
    ask = VoteRequest(1, BALLOT, LOG_UUID, acceptor.member)
    persist, *_ = acceptor.step(Received(1, ask))
    assert isinstance(persist, Persist) and persist.state.ballot == BALLOT
    said = [e.message for e in acceptor.step(StorageFailed("failed")) if isinstance(e, Send)]
    said += [e.message for e in acceptor.step(Received(2, ask)) if isinstance(e, Send)]
    assert [m.ballot for m in said if isinstance(m, Reject)] == [NO_BALLOT] * len(said) != []


def check_of(end: int) -> tuple[PrimaryCheck, bytes]:
    """Make the check of a log with `end` bytes, as far as the read of the primary."""
    end_lsn = CREATION_LSN + end
    primary = PrimaryIdentity(7, 1, end_lsn, 1 << 20, "15.18", 150018, False, True, True)
    creation = Fragment(NO_BALLOT, CREATION_LSN, 1, False, THREE.members, 2)
    log = admission.LogEnd(THREE, (creation,), end_lsn, end_lsn)
    check = PrimaryCheck(
        primary, log, admission.Waivers(), Range(CREATION_LSN, end_lsn, 0, NO_BALLOT), None
    )
    read, _ = check.start()
    assert read == ReadPrimary(CREATION_LSN, end_lsn, 1)
    wal = bytes(range(256)) * (end // 256 + 1)
    return check, wal[:end]


@pytest.mark.parametrize("stale", [(0, 100), (0, 20000), (100, 8000), (8192, 100), (50, 30000)])
def test_pieces_of_an_earlier_read_of_the_primary_do_no_harm(stale: tuple[int, int]) -> None:
    """A check that lost its donor was followed by another, whose assertion the old read broke."""
    check, wal = check_of(20000)
    begin, size = stale
    longer = wal + bytes(20000)
    assert check.on_primary_read(CREATION_LSN + begin, longer[begin : begin + size]) == []
    for at in range(0, len(wal), 4096):
        assert check.on_primary_read(CREATION_LSN + at, wal[at : at + 4096]) == []
    assert check.verdict is None
    check.on_log_read(ReadResponse(NO_BALLOT, CREATION_LSN, crc_of(wal), wal))
    assert check.verdict is Verdict.PASSED


def test_a_read_of_the_primary_ends_the_one_before_it() -> None:
    """Its pieces, perhaps of another server, were compared as if they were of the new one."""

    async def body() -> None:
        primary = Primary("", "w", "w", apply_quorum=True, on_streaming=lambda _: None)
        started, ended = list[Lsn](), list[Lsn]()

        async def read(begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None:
            started.append(begin_lsn)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(begin_lsn)

        primary._read = read  # type: ignore[method-assign]  # a spy
        async with asyncio.TaskGroup() as primary._group:
            for begin_lsn in (Lsn(8), Lsn(16)):
                primary.read(begin_lsn, Lsn(100), 1)
                await until(partial(started.__contains__, begin_lsn))
            await until(lambda: ended == [Lsn(8)])
            primary._stop_reading_range()
        assert ended == [Lsn(8), Lsn(16)]

    asyncio.run(body())


def _parsing_s(query: str) -> float:
    """Return the CPU time of this thread. A collection of garbage may fall into one of several."""
    started_s = time.thread_time()
    is_empty(query)
    with suppress(SqlRefused):
        parse_command(query)
    return time.thread_time() - started_s


@pytest.mark.parametrize("word", ["/* ", "/*/", "--", "-- \n", "/**/", ";", " ", "*/"])
def test_no_query_keeps_the_event_loop(word: str) -> None:
    """64 KiB of comments that are never closed took five seconds, and nobody else was served."""
    text = (word * QUERY_BYTES_MAX)[:QUERY_BYTES_MAX]
    for query in (text, "SHOW " + text[5:], text[1:] + "x"):
        assert min(_parsing_s(query) for _ in range(3)) < 0.5


def test_an_empty_query_has_only_spaces_comments_and_semicolons() -> None:
    for text in ("", " ;\n", "-- x", "/* a */ ; -- b\n\t/**/", "/* -- */", "--/*\n;"):
        assert is_empty(text), text
    for text in ("x", "/* a", "/* a */ b", "-- a\nb", "/", "-", "/* a */ */", "-- /*\n*/"):
        assert not is_empty(text), text


SAYS = {
    "[status]\nwatch = 1.5": "is not a valid boolean",
    "[status]\nwatch = ['a:1']": "is not a valid boolean",
    "status = 1": r"status is a command: \[status\]",
    "[[status]]\nwatch = true": r"status is a command: \[status\]",
    "[status]\ntimeout = {a = 1}": "timeout is a table",
    "[status]\ntimeout = " + "1" * 5000: "digits",
    "x = " + "[" * 2000: "recursion",
}


@pytest.mark.parametrize("text", SAYS)
def test_a_value_of_another_type_in_the_configuration_file_is_a_usage_error(
    text: str, tmp_path: Path
) -> None:
    """It was a traceback."""
    path = tmp_path / "walkeeper.toml"
    path.write_text(text)
    arguments = ["status", "--config", str(path), "--safekeepers", "127.0.0.1:1"]
    with pytest.raises(click.UsageError, match=SAYS[text]):
        cli.main(arguments, standalone_mode=False)


def test_values_of_the_configuration_file_are_what_the_command_line_would_say(
    tmp_path: Path,
) -> None:
    path = tmp_path / "walkeeper.toml"
    path.write_text('safekeepers = ["a:1", "b:2"]\n[status]\njson = true\ntimeout = 2.5\n')
    program = click.Context(cli)
    command = cli.get_command(program, "status")
    assert command is not None
    context = command.make_context("status", ["--config", str(path)], parent=program)
    assert context.params["safekeepers"] == (("a", 1), ("b", 2))
    assert (context.params["as_json"], context.params["timeout"]) == (True, 2.5)
    assert context.params["watch"] is False


@pytest.mark.parametrize("more", [1, 40, 5000])
def test_a_donor_that_sends_more_than_it_was_asked_for_feeds_nobody(more: int) -> None:
    """The laggard was sent WAL from beyond the window: bytes that no primary had written."""
    start_lsn, end_lsn = Lsn(0x10000), Lsn(0x11000)
    feeder = Feeder(1, BALLOT, ONE_TIMELINE, WalWindow(end_lsn), ZERO_LSN, ZERO_LSN)
    members = [Member(link, Stage.STREAMING, attached=True) for link in range(2)]
    for member, at_lsn in zip(members, (end_lsn, start_lsn), strict=True):
        member.next_lsn = member.asked_lsn = member.flush_lsn = at_lsn
    (asked,) = feeder.feed(members[1], members)
    wal = bytes(end_lsn - start_lsn + more)
    assert isinstance(asked, SendTo) and asked.link == 0
    feeder.on_donated(members[0], ReadResponse(BALLOT, start_lsn, crc_of(wal), wal), members)
    assert members[1].next_lsn == start_lsn
    wal = wal[: end_lsn - start_lsn]
    feeder.feed(members[1], members)
    feeder.on_donated(members[0], ReadResponse(BALLOT, start_lsn, crc_of(wal), wal), members)
    assert members[1].next_lsn == end_lsn


def test_a_slots_file_has_one_meaning() -> None:
    """A slot twice in the file, behind a right CRC, was one of the two."""
    slots = Slots(None)
    for name in ("a", "b"):
        slots.create(name, temporary=False, restart_lsn=Lsn(8), pid=1)
    data = slots.image().data
    assert [slot.name for slot in Slots(data)] == ["a", "b"]
    body = data[16:-4]
    for changed in (body.replace(b"b", b"a"), body.replace(b"\1\1\0", b"\1\2\0")):
        with pytest.raises(CorruptWal, match="slots"):
            Slots(seal(b"WKSLOTS\0", 1, changed))


def test_a_history_file_has_lsns_of_64_bits() -> None:
    good, long = b"1\t0/3000000\tno\n", b"2\tFFFFFFFFF/0\tno\n3\t0/123456789\n"
    assert parse_timeline_file(good + long + b"1" * 5000 + b" 0/0") == [(1, Lsn(0x3000000))]


def test_greetings_do_not_fill_the_memory() -> None:
    """Each one under a fresh proposer id was remembered for good, with up to 128 KiB of names."""
    acceptor = acceptor_of_three()
    acceptor.durable = replace(acceptor.durable, ballot=BALLOT)

    def no_task(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a greeting starts none")

    driver = SimpleNamespace(
        acceptor=acceptor, is_busy=False, post=lambda *_: None, append_at_once=lambda *_: 0
    )
    log = SimpleNamespace(driver=driver, sessions=ProposerSessions())
    peer = SimpleNamespace(peer="127.0.0.1:9", write=lambda *_: None, limit_frames=lambda *_: None)
    session = ProposerSession(
        cast(FramedConnection, peer),
        cast(LogCatalog, SimpleNamespace(hosted=lambda cluster: log)),
        1,
        no_task,
        OpenDoor(),
    )
    ids = [BALLOT.proposer_id, *(number.to_bytes(16, "big") for number in range(1000))]
    for proposer_id in ids:
        session.on_message(
            ProposerGreeting(
                1, "main", LOG_UUID, 0, 0, "", proposer_id, LogKind.PHYSICAL, "w", None
            ),
        )
    known = [each for each in ids if log.sessions.known(each) is not None]
    assert known == [ids[0], *ids[-PROPOSERS_KNOWN_MAX + 1 :]]
