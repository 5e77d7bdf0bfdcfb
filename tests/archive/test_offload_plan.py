"""The plan of archiving: turns, take-over, yielding, order of promise, pauses after failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.archiving.offload_plan import (
    AHEAD_SEGMENTS_MAX,
    BACK_OFF_TICKS_MAX,
    LAG_SEGMENTS,
    LOOK_TICKS,
    TAKE_OVER_TICKS,
    ArchivedMoved,
    ArchiveFailed,
    ArchiveSegment,
    ArchiveTail,
    Effect,
    Event,
    Grown,
    Look,
    Looked,
    OffloadNote,
    OffloadPlan,
    OffloadTick,
    Request,
    SegmentArchived,
    TailArchived,
    rank_of,
)
from walkeeper_safekeeper.hosting.retention import kept_bytes, wanted_lsn

SEGMENT = 1 << 20
FIRST = Lsn(3 * SEGMENT)
NOBODY: frozenset[Lsn] = frozenset()
TAIL_TICKS = 60


def at(number: int) -> Lsn:
    """Return the start of the segment with that number, counted from the first one."""
    return FIRST + number * SEGMENT


def plan_of(rank: int = 0, parallel: int = 4) -> OffloadPlan:
    return OffloadPlan(
        rank=rank,
        segment_bytes=SEGMENT,
        archived_lsn=FIRST,
        parallel_max=parallel,
        tail_ticks=TAIL_TICKS,
    )


def ticks(plan: OffloadPlan, count: int) -> list[Effect]:
    return [effect for _ in range(count) for effect in plan.step(OffloadTick())]


def test_the_first_in_rank_looks_and_then_archives_lowest_first_and_no_more_at_once() -> None:
    plan = plan_of(parallel=2)
    assert plan.step(Grown(at(3))) == [Look(FIRST)]
    assert plan.step(Looked(NOBODY)) == [ArchiveSegment(at(0)), ArchiveSegment(at(1))]
    assert plan.step(SegmentArchived(at(0), by_us=True)) == [
        ArchivedMoved(at(1)),
        ArchiveSegment(at(2)),
    ]


def test_a_segment_counts_only_when_all_before_it_do() -> None:
    plan = plan_of()
    plan.step(Grown(at(3)))
    plan.step(Looked(NOBODY))
    for number in (2, 1):
        assert plan.step(SegmentArchived(at(number), by_us=True)) == []
        assert plan.archived_lsn == FIRST
    assert plan.step(SegmentArchived(at(0), by_us=True)) == [ArchivedMoved(at(3))]
    assert plan.due_segments == 0


def test_the_others_compare_what_is_there_and_leave_the_rest_to_the_offloader() -> None:
    plan = plan_of(rank=1)
    assert plan.step(Grown(at(4))) == [Look(FIRST)]
    assert plan.step(Looked(frozenset({at(0), at(1)}))) == [
        ArchiveSegment(at(0)),
        ArchiveSegment(at(1)),
    ]
    plan.step(SegmentArchived(at(0), by_us=False))
    plan.step(SegmentArchived(at(1), by_us=False))
    assert plan.archived_lsn == at(2) and not plan.is_offloading
    assert ticks(plan, LOOK_TICKS - 1) == []
    assert ticks(plan, 1) == [Look(at(2))]


@pytest.mark.parametrize("rank", [1, 2])
def test_an_archive_that_does_not_move_is_taken_over_in_the_order_of_ranks(rank: int) -> None:
    plan = plan_of(rank=rank)
    plan.step(Grown(at(1)))
    plan.step(Looked(NOBODY))
    for _ in range(rank * TAKE_OVER_TICKS - 1):
        for effect in plan.step(OffloadTick()):
            assert effect == Look(FIRST)
            assert plan.step(Looked(NOBODY)) == []
    assert plan.step(OffloadTick()) == [Look(FIRST)]
    note, begun = plan.step(Looked(NOBODY))
    assert isinstance(note, OffloadNote) and begun == ArchiveSegment(FIRST)


def test_an_archive_that_moves_is_not_taken_over_however_long_it_takes() -> None:
    plan = plan_of(rank=1)
    plan.step(Grown(at(LAG_SEGMENTS - 1)))
    plan.step(Looked(NOBODY))
    seen: set[Lsn] = set()
    for tick in range(TAKE_OVER_TICKS * 5):
        if tick % (TAKE_OVER_TICKS - 3) == 0:
            seen.add(at(len(seen)))
        for effect in plan.step(OffloadTick()):
            assert effect == Look(plan.archived_lsn)
            for begun in plan.step(Looked(frozenset(seen))):
                assert isinstance(begun, ArchiveSegment)
                plan.step(SegmentArchived(begun.begin_lsn, by_us=False))
    assert not plan.is_offloading and len(seen) > 5


def test_an_offloader_that_falls_behind_is_helped() -> None:
    plan = plan_of(rank=1)
    plan.step(Grown(at(LAG_SEGMENTS)))
    assert isinstance(plan.step(Looked(NOBODY))[0], OffloadNote)
    assert plan.is_offloading


def test_an_offloader_that_took_over_yields_when_it_meets_another() -> None:
    plan = plan_of(rank=1)
    plan.step(Grown(at(LAG_SEGMENTS)))
    plan.step(Looked(NOBODY))
    effects = plan.step(SegmentArchived(at(0), by_us=False))
    assert any(isinstance(effect, OffloadNote) for effect in effects)
    assert not plan.is_offloading
    # A safekeeper with much to do first watches for a while, and compares the files that it sees.
    seen = frozenset({at(5)})
    assert plan.step(Looked(seen)) == [ArchiveSegment(at(5))]
    plan.step(SegmentArchived(at(5), by_us=False))
    ticks(plan, TAKE_OVER_TICKS - 1)
    plan.step(Grown(at(3 * LAG_SEGMENTS)))
    assert plan.step(Looked(seen)) == [] and not plan.is_offloading
    ticks(plan, 1)
    assert isinstance(plan.step(Looked(seen))[0], OffloadNote) and plan.is_offloading


def test_the_first_in_rank_does_not_give_way() -> None:
    plan = plan_of(rank=0)
    plan.step(Grown(at(2)))
    plan.step(Looked(NOBODY))
    plan.step(SegmentArchived(at(0), by_us=False))
    assert plan.is_offloading


def test_failures_are_tried_again_with_growing_pauses_and_shown_until_it_works() -> None:
    plan = plan_of()
    plan.step(Grown(at(1)))
    pauses = []
    for _ in range(8):
        plan.step(Looked(NOBODY))
        plan.step(ArchiveFailed(ArchiveSegment(FIRST), "503"))
        assert plan.problem == "503" and plan.archived_lsn == FIRST
        waited = 1
        while plan.step(OffloadTick()) != [Look(FIRST)]:
            waited += 1
        pauses.append(waited)
        plan.step(ArchiveFailed(Look(FIRST), "503"))
        while plan.step(OffloadTick()) != [Look(FIRST)]:
            pass
    assert pauses[:3] == sorted(pauses[:3]) and pauses[-1] <= BACK_OFF_TICKS_MAX
    plan.step(Looked(NOBODY))
    assert plan.problem is None


def test_a_segment_that_always_fails_holds_up_a_bounded_number_after_it() -> None:
    plan = plan_of()
    effects = plan.step(Grown(at(1000)))
    put: set[Lsn] = set()
    for _ in range(1000):
        after: list[Effect] = plan.step(OffloadTick())
        for effect in effects:
            if isinstance(effect, Look):
                after += plan.step(Looked(NOBODY))
            elif isinstance(effect, ArchiveSegment) and effect.begin_lsn == at(1):
                after += plan.step(ArchiveFailed(effect, "conflict"))
            elif isinstance(effect, ArchiveSegment):
                put.add(effect.begin_lsn)
                after += plan.step(SegmentArchived(effect.begin_lsn, by_us=True))
        effects = after
    assert plan.archived_lsn == at(1)
    assert max(put) == at(AHEAD_SEGMENTS_MAX) and len(put) == AHEAD_SEGMENTS_MAX


def test_the_tail_is_archived_at_intervals_when_nothing_else_is_due() -> None:
    plan = plan_of()
    assert ticks(plan, TAIL_TICKS - 1) == []
    assert ticks(plan, 1) == [ArchiveTail(is_ours=True)]
    assert ticks(plan, TAIL_TICKS) == [], "one at a time"
    plan.step(TailArchived())
    plan.step(Grown(at(1)))
    assert not any(isinstance(effect, ArchiveTail) for effect in ticks(plan, 2 * TAIL_TICKS))


def test_a_dead_offloaders_tail_is_looked_after_by_the_next_in_rank() -> None:
    assert ticks(plan_of(rank=1), TAIL_TICKS + TAKE_OVER_TICKS - 1) == []
    assert ticks(plan_of(rank=1), TAIL_TICKS + TAKE_OVER_TICKS) == [ArchiveTail(is_ours=False)]
    assert ticks(plan_of(rank=2), TAIL_TICKS + TAKE_OVER_TICKS) == []


@pytest.mark.parametrize("cluster", ["main", "a", "b", "c", "other"])
def test_every_member_has_another_rank(cluster: str) -> None:
    members = (1, 2, 7)
    ranks = [rank_of(member, members, cluster) for member in members]
    assert sorted(ranks) == [0, 1, 2]


def test_the_first_in_rank_is_not_the_same_for_all_clusters() -> None:
    firsts = {next(m for m in (1, 2, 3) if not rank_of(m, (1, 2, 3), f"c{i}")) for i in range(20)}
    assert firsts == {1, 2, 3}


@dataclass
class World:
    """Three members, one archive of receipts, requests that are answered late, fail or are lost."""

    random: Random
    plans: list[OffloadPlan] = field(default_factory=lambda: [plan_of(rank) for rank in range(3)])
    alive: list[bool] = field(default_factory=lambda: [True] * 3)
    receipts: set[Lsn] = field(default_factory=set)
    answers: list[tuple[int, Request]] = field(default_factory=list)
    puts = 0

    def post(self, member: int, event: Event) -> None:
        for effect in self.plans[member].step(event):
            if isinstance(effect, Look | ArchiveSegment | ArchiveTail):
                self.answers.append((member, effect))

    def answer_one(self, *, failures: float) -> None:
        if not self.answers:
            return
        member, request = self.answers.pop(self.random.randrange(len(self.answers)))
        event: Event = ArchiveFailed(request, "no")
        if self.random.random() >= failures:
            event = self.perform(request)
            if self.random.random() < failures / 2:
                event = ArchiveFailed(request, "done, and the answer was lost")
        if self.alive[member]:
            self.post(member, event)

    def perform(self, request: Request) -> Event:
        match request:
            case Look(begin_lsn):
                return Looked(frozenset(r for r in self.receipts if r >= begin_lsn))
            case ArchiveSegment(begin_lsn):
                by_us = begin_lsn not in self.receipts
                self.puts += by_us
                self.receipts.add(begin_lsn)
                return SegmentArchived(begin_lsn, by_us=by_us)
            case ArchiveTail():
                return TailArchived()

    def kill(self, member: int) -> None:
        """Take the member's memory away; its requests may still arrive at the store."""
        old = self.plans[member]
        self.plans[member] = plan_of(member)
        self.plans[member].whole_lsn = FIRST
        self.answers = [(m, r) for m, r in self.answers if m != member]
        self.alive[member] = False
        assert old.archived_lsn >= FIRST

    def check(self) -> None:
        for plan in self.plans:
            number = (plan.archived_lsn - FIRST) // SEGMENT
            assert all(at(n) in self.receipts for n in range(number)), "a gap below archived_lsn"


@pytest.mark.parametrize("seed", range(20))
def test_no_gap_is_counted_and_all_is_archived_after_any_death_and_failure(seed: int) -> None:
    world = World(Random(seed))
    random, segments = world.random, 0
    failures = random.choice((0.0, 0.1, 0.5))
    for _ in range(600):
        segments += random.random() < 0.3
        for member in range(3):
            if world.alive[member]:
                world.post(member, Grown(at(segments)))
                world.post(member, OffloadTick())
            elif random.random() < 0.05:
                world.alive[member] = True
        if random.random() < 0.02:
            world.kill(random.randrange(3))
        for _ in range(random.randrange(6)):
            world.answer_one(failures=failures)
        world.check()
    survivor = random.randrange(3)
    for member in range(3):
        if member != survivor:
            world.kill(member)
    world.alive[survivor] = True
    for _ in range(500):
        world.post(survivor, Grown(at(segments)))
        world.post(survivor, OffloadTick())
        for _ in range(5):
            world.answer_one(failures=0)
        world.check()
    assert world.plans[survivor].archived_lsn == at(segments)
    assert {at(n) for n in range(segments)} <= world.receipts


def test_readers_below_this_disk_hold_nothing_when_there_is_an_archive() -> None:
    low, here, high = at(0), at(5), at(9)
    assert wanted_lsn([high, low], first_lsn=here, has_archive=False) == low
    assert wanted_lsn([high, low], first_lsn=here, has_archive=True) == high
    assert wanted_lsn([here, low], first_lsn=here, has_archive=True) == here
    assert wanted_lsn([low], first_lsn=here, has_archive=True) is None


def test_the_size_to_keep_falls_to_zero_near_the_limit() -> None:
    assert kept_bytes(1000, used_bytes=10**9, size_max=None) == 1000
    assert kept_bytes(1000, used_bytes=799, size_max=1000) == 1000
    assert kept_bytes(1000, used_bytes=800, size_max=1000) == 0
