"""Inputs that the fuzzer keeps are replayed in plain pytest, and each target is able to fail.

A kept input is a file, a target a function, so this needs no atheris. tests.proof.fuzz searches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from struct import Struct

import pytest

from tests.proof.fuzz import runner
from tests.proof.fuzz.contract import Target
from tests.proof.fuzz.corpus import CORPUS, corpus_of, inputs_of
from tests.proof.fuzz.mutation import search
from tests.proof.fuzz.statistics import Run, table
from tests.proof.fuzz.targets import PLACES, load
from walkeeper_admin.primary import standby_names
from walkeeper_cli import configuration_file
from walkeeper_common import entries
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres import pgwire, replication_commands, walformat
from walkeeper_common.quorum import MemberSet
from walkeeper_common.wire import fields, framing
from walkeeper_common.wire.messages import AppendResponse, Feedback
from walkeeper_pager import block_index, page_names
from walkeeper_proposer.consensus import leadership
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer_events import Effect, Report
from walkeeper_proposer.logical import change_stream
from walkeeper_proposer.postgres import primary
from walkeeper_safekeeper.consensus import acceptor, acceptor_answers, creation
from walkeeper_safekeeper.replication import log_settings, physical_slots
from walkeeper_wal.records import engines, walk
from walkeeper_wal.sources import reading, segment_timelines

CORPUS_BYTES_MAX = 600_000
TRIES = 4000
UNTOUCHED_TRIES = 150  # tries for each target; a run under libFuzzer makes millions


def first_inputs(target: Target) -> list[bytes]:
    """Return inputs that are kept and inputs made by code, as a run begins."""
    return [*inputs_of(target.name).values(), *target.short_seeds()]


@pytest.mark.parametrize("name", PLACES)
def test_kept_inputs_and_their_mutations_do_no_harm(name: str) -> None:
    target = load(name)
    for called, data in inputs_of(name).items():
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{called}: {error}") from error
    assert search(target, first_inputs(target), Random(name), tries=UNTOUCHED_TRIES) is None


def test_the_kept_inputs_are_small_and_each_target_has_some() -> None:
    sizes = {name: [len(data) for data in corpus_of(name).values()] for name in PLACES}
    assert sum(sum(found) for found in sizes.values()) <= CORPUS_BYTES_MAX, f"{sizes=}"
    assert not [name for name, found in sizes.items() if len(found) < 5], f"{sizes=}"
    assert {path.stem for path in CORPUS.iterdir()} == set(PLACES)


# A defect of each kind that the targets are there for. Each is one that somebody could write.

Planted = Callable[[pytest.MonkeyPatch], None]


def decodes_without_a_net(patch: pytest.MonkeyPatch) -> None:
    def text(self: fields.Reader) -> str:
        return str(self.view(self.u16()), "utf-8")

    patch.setattr(fields.Reader, "text", text)


def loses_what_was_held(patch: pytest.MonkeyPatch) -> None:
    def grow(self: framing.FrameReader, start: memoryview, length: int) -> None:
        self.large, self.held_bytes = bytearray(length), len(start)

    patch.setattr(framing.FrameReader, "_grow", grow)


def waits_for_one_byte_more(patch: pytest.MonkeyPatch) -> None:
    whole = pgwire.MessageBuffer.next_startup

    def next_startup(self: pgwire.MessageBuffer) -> pgwire.StartupPacket | None:
        return None if 4 <= len(self) < 6 else whole(self)

    def feed(self: pgwire.MessageBuffer, data: bytes) -> None:
        self._data += data if len(self._data) % 5 else data[:1] + data[1:].replace(b"\0\0", b"\0")

    patch.setattr(pgwire.MessageBuffer, "next_startup", next_startup)
    patch.setattr(pgwire.MessageBuffer, "feed", feed)


def keeps_its_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(physical_slots.Slots, "release_all", lambda self, *, pid: None)


def forgets_the_end_of_input(patch: pytest.MonkeyPatch) -> None:
    def accept(self: replication_commands._Words, word: str) -> bool:
        return self.tokens[0][1].upper() == word and bool(self.tokens.pop(0))

    patch.setattr(replication_commands._Words, "accept", accept)


def takes_any_length(patch: pytest.MonkeyPatch) -> None:
    def unpack(layout: Struct, payload: bytes, *, exactly: bool) -> tuple[int, ...]:
        found: tuple[int, ...] = layout.unpack_from(bytes(payload) + bytes(8))
        return found[1:]

    patch.setattr(pgwire, "_unpack", unpack)


def takes_trailing_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fields.Reader, "done", lambda self: None)


def takes_a_slot_twice(patch: pytest.MonkeyPatch) -> None:
    def load(self: physical_slots.Slots, saved: bytes, file_name: str) -> None:
        _, slots, _ = physical_slots._decode(saved, file_name)
        for name, restart_lsn, slot_id, _ in slots:
            self._put(name, slot_id, restart_lsn=restart_lsn)

    patch.setattr(physical_slots.Slots, "_load", load)


def trusts_the_previous_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walformat._Walk, "_check_prev_link", lambda self, start, head: None)


def looks_for_a_record_behind_a_switch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walformat._Walk, "_leave_segment", lambda self: None)


def quotes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(standby_names, "quoted_name", lambda name: f'"{name}"')


def hands_toml_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(configuration_file, "_as_written", lambda path, key, value: value)


def speaks_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    kept = acceptor.Acceptor._promise
    patch.setattr(acceptor.Acceptor, "_promise", lambda self, ballot: kept(self, ballot)[:0])


def acknowledges_what_is_written(patch: pytest.MonkeyPatch) -> None:
    def ack_of(speaker: acceptor.Acceptor) -> object:
        return kept(_Ahead(speaker))  # type: ignore[arg-type]  # a planted defect

    kept = acceptor_answers.ack_of
    patch.setattr(acceptor_answers, "ack_of", ack_of)


class _Ahead:
    def __init__(self, speaker: acceptor.Acceptor) -> None:
        self._speaker, self.flush_lsn = speaker, speaker.write_lsn + 8

    def __getattr__(self, name: str) -> object:
        return getattr(self._speaker, name)


def adopts_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(creation, "flaw_of", lambda configuration: None)


def counts_one_ack_as_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberSet, "acknowledged", lambda self, lsns: max(lsns))


def asserts_what_a_peer_says(patch: pytest.MonkeyPatch) -> None:
    def on_append_response(
        self: leadership.Leader, member: Member, response: AppendResponse
    ) -> list[Effect]:
        assert response.flush_lsn <= member.next_lsn, f"{response=}"
        return kept(self, member, response)

    kept = leadership.Leader.on_append_response
    patch.setattr(leadership.Leader, "on_append_response", on_append_response)


def reports_what_it_has_sent(patch: pytest.MonkeyPatch) -> None:
    def report(self: leadership.Leader) -> list[Effect]:
        lsn = self.commit_lsn + 8
        return [Report(Lsn(lsn), ())] if self.is_streaming else []

    patch.setattr(leadership.Leader, "report", report)


def looks_at_no_crc(patch: pytest.MonkeyPatch) -> None:
    """Plant a defect in one of two engines."""
    kept = engines.engine

    def engine(name: str = "auto") -> walk.Walk:
        walks = kept(name)
        if name != "numpy":
            return walks
        return lambda request, buffers: walks(replace(request, check_crc=False), buffers)

    patch.setattr(reading, "engine", engine)


def takes_timelines_in_any_order(patch: pytest.MonkeyPatch) -> None:
    kept = segment_timelines.parse_history
    patch.setattr(segment_timelines, "parse_history", lambda *given: kept(*given)[::-1])


def looks_at_no_frames_place(patch: pytest.MonkeyPatch) -> None:
    kept = entries.EntryWalk._count

    def count(self: entries.EntryWalk, frame: entries.Frame) -> None:
        self.entry_start = self.entry_start if frame.is_first else self.position
        kept(self, replace(frame, flags=frame.flags & ~entries.FIRST))

    patch.setattr(entries.EntryWalk, "_count", count)
    patch.setattr(entries.EntryWalk, "last_record", lambda self: [*self] and self.record)


def takes_a_begin_inside_a_transaction(patch: pytest.MonkeyPatch) -> None:
    kept = change_stream.ChangeStream._on_begin

    def on_begin(self: change_stream.ChangeStream, message: memoryview) -> None:
        self._is_inside = False
        kept(self, message)

    patch.setattr(change_stream.ChangeStream, "_on_begin", on_begin)


def reads_lsns_without_a_net(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_settings, "ValueError", KeyError, raising=False)


def takes_numbers_of_any_length(patch: pytest.MonkeyPatch) -> None:
    numbers = re.compile(r"(\d+)/(\d+)/(\d+)")
    patch.setattr(page_names, "_NUMBERS", numbers)


def sorts_blocks_in_no_order(patch: pytest.MonkeyPatch) -> None:
    """Put the later record of a block first, where the index is joined."""
    kept = block_index._Rows.joined

    def joined(self: block_index._Rows, other: block_index._Rows) -> block_index._Rows:
        return kept(other, self)

    patch.setattr(block_index._Rows, "joined", joined)


def answers_with_other_feedback(patch: pytest.MonkeyPatch) -> None:
    """Change the ack of the slow path alone."""
    kept = acceptor_answers.ack_of
    other = Feedback(Lsn(1), 0, 0)
    patch.setattr(acceptor_answers, "ack_of", lambda core: replace(kept(core), feedback=other))


def joins_wal_backwards(patch: pytest.MonkeyPatch) -> None:
    """Change the WAL that the slow path has gathered."""
    kept = primary.Primary._deliver

    def deliver(self: primary.Primary) -> None:
        self._gathered.reverse()
        kept(self)

    patch.setattr(primary.Primary, "_deliver", deliver)


PLANTED: list[tuple[str, Planted]] = [
    ("messages", decodes_without_a_net),
    ("frames", loses_what_was_held),
    ("pg_client", waits_for_one_byte_more),
    ("pg_session", keeps_its_slots),
    ("pg_commands", forgets_the_end_of_input),
    ("pg_replies", takes_any_length),
    ("control_file", takes_trailing_bytes),
    ("slots_file", takes_a_slot_twice),
    ("wal", trusts_the_previous_record),
    ("wal_story", looks_for_a_record_behind_a_switch),
    ("entries", looks_at_no_frames_place),
    ("pgoutput", takes_a_begin_inside_a_transaction),
    ("log_settings", reads_lsns_without_a_net),
    ("settings", quotes_nothing),
    ("configuration_file", hands_toml_on),
    ("acceptor", speaks_before_it_is_durable),
    ("acceptor", acknowledges_what_is_written),
    ("creation", adopts_anything),
    ("proposer", counts_one_ack_as_a_quorum),
    ("proposer", asserts_what_a_peer_says),
    ("proposer", reports_what_it_has_sent),
    ("fast_appends", answers_with_other_feedback),
    ("fast_acks", counts_one_ack_as_a_quorum),
    ("fast_primary", joins_wal_backwards),
    ("history", looks_at_no_crc),
    ("archive_names", takes_timelines_in_any_order),
    ("pager_requests", takes_numbers_of_any_length),
    ("pager_index", sorts_blocks_in_no_order),
]


@pytest.mark.parametrize(
    ("name", "plant"), PLANTED, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_planted_defect_is_found(
    name: str, plant: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load(name)
    inputs = first_inputs(target)
    plant(monkeypatch)
    assert search(target, inputs, Random(name), tries=TRIES) is not None


def test_every_target_has_a_planted_defect() -> None:
    assert {name for name, _ in PLANTED} == set(PLACES)


# The runner


def test_a_run_is_read_from_what_libfuzzer_prints() -> None:
    run = Run("wal", seconds=2.0)
    lines = [
        "INFO: Instrumenting walkeeper_common.lsn",
        "#2\tINITED cov: 4 ft: 5 corp: 1/1b exec/s: 0 rss: 60Mb",
        "#5000\tREDUCE cov: 12 ft: 40 corp: 7/99b lim: 4 exec/s: 2500 rss: 60Mb L: 3/9 MS: 1 X-",
        "artifact_prefix='/x/wal-'; Test unit written to /x/wal-crash-0af1",
        "Done 6000 runs in 2 second(s)",
    ]
    assert [run.read(line) for line in lines] == [False, True, True, False, False]
    assert (run.inputs, run.edges, run.features, run.corpus) == (6000, 12, 40, 7)
    assert run.crashes == ["/x/wal-crash-0af1"] and run.speed == 3000
    assert table([run, Run("frames", failed="exit 1")]).splitlines()[-1].split() == [
        "all", "6,000", "3,000", "1",
    ]  # fmt: skip


def test_a_plain_run_counts_its_inputs_and_keeps_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CRASHES", tmp_path / "crashes")
    said = list[str]()
    ended = runner.run_plainly("fast_acks", runner.Bound(60, None, seed=1), said.append)
    assert (ended.inputs, ended.crashes, said) == (60, [], [])
    counts_one_ack_as_a_quorum(monkeypatch)
    failed = runner.run_plainly("fast_acks", runner.Bound(TRIES, None, seed=1), said.append)
    assert len(failed.crashes) == 1 and failed.inputs < TRIES
    assert "repeat it: " in said[-1] and failed.crashes[0] in said[-1]
    with pytest.raises(Exception, match=r"\S"):
        load("fast_acks").run(Path(failed.crashes[0]).read_bytes())
