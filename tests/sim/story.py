"""One seed's story: a safety phase full of faults, then everything heals and must move on."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.oracle import (
    Acknowledged,
    Committed,
    Leaders,
    NoProgress,
    Promises,
    Violation,
)
from tests.sim.primary import Primary
from tests.sim.proposer_node import ProposerNode
from tests.sim.safekeeper_node import SafekeeperNode
from tests.sim.world import World
from tests.wal_maker import WalMaker
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind, member_name
from walkeeper_proposer.campaign import Purpose
from walkeeper_proposer.proposer_events import Outcome, Stop
from walkeeper_safekeeper.driver import Driver
from walkeeper_safekeeper.durable import Durable
from walkeeper_safekeeper.wal_store import WalStore

SEGMENT_BYTES = 65536
HEAL_S = 60
NEW_RECORDS = 5


class Story:
    """Builds the world of a seed, runs it, raises what an oracle finds."""

    def __init__(self, seed: int, *, show: Callable[[str], None] | None = None) -> None:
        self.world = world = World(seed, show=show)
        start_lsn = Lsn(SEGMENT_BYTES * world.random.choice((1, 3, 65536)))
        maker = WalMaker(world.random, segment_bytes=SEGMENT_BYTES, start_lsn=start_lsn)
        for _ in range(world.random.randrange(4)):
            maker.record(200, 0, 1)
        self.acked, self.leaders = Acknowledged(start_lsn), Leaders()
        self.committed, self.promises = Committed(start_lsn), Promises()
        self.safekeepers = self._safekeepers(start_lsn)
        self.primary = Primary(world, "pg1", maker, self.acked)
        self.primaries = [self.primary]
        self.proposers: list[ProposerNode] = []
        self._writing: list[Primary] = []  # none: the last two
        self._names = 0

    def _safekeepers(self, start_lsn: Lsn) -> list[SafekeeperNode]:
        """Created as rule 17 says: one configuration, the same on every member."""
        options, random = self.world.options, self.world.random
        incarnations = [random.randbytes(16) for _ in range(options.safekeepers)]
        members = tuple(member_name(i + 1, inc) for i, inc in enumerate(incarnations))
        configuration = Configuration(
            generation=1,
            log_uuid=random.randbytes(16),
            system_id=7_000_000_000_000_000_001,
            segment_bytes=SEGMENT_BYTES,
            server_version="15.18",
            kind=LogKind.PHYSICAL,
            creation_lsn=start_lsn,
            timeline=1,
            members=members,
            ack_quorum=options.ack_quorum,
        )
        entry = Fragment(NO_BALLOT, start_lsn, 1, False, members, options.ack_quorum)
        return [
            SafekeeperNode(
                self.world,
                number,
                Durable(
                    acceptor_id=number,
                    incarnation=incarnation,
                    log_uuid=configuration.log_uuid,
                    configuration=configuration,
                    history=(entry,),
                    commit_lsn=start_lsn,
                    restart_lsn=start_lsn,
                    reached_lsn=start_lsn,
                ),
                self.committed,
                self.promises,
            )
            for number, incarnation in enumerate(incarnations, 1)
        ]

    def run(self) -> None:
        """Raises Violation, NoProgress, or whatever the code under test breaks with."""
        world, options = self.world, self.world.options
        world.say("----", f"seed {world.seed} {options}")
        self._schedule_faults()
        for _ in range(options.proposers):
            self._start_proposer(take_over=False)
        self._write_for_ever()
        world.run_until(options.safety_s * 1000)
        self._heal()
        self._demand_progress()

    def _schedule_faults(self) -> None:
        world, options, random = self.world, self.world.options, self.world.random
        world.every(options.breaks, lambda: self._on_some_proposer(ProposerNode.break_one))
        world.every(options.partitions, self._partition)
        world.every(options.safekeeper_crashes, lambda: random.choice(self.safekeepers).crash())
        world.every(options.safekeeper_stops, lambda: random.choice(self.safekeepers).stop())
        world.every(options.failing_syncs, lambda: random.choice(self.safekeepers).fail_sync())
        world.every(options.full_disks, lambda: random.choice(self.safekeepers).fill_disk())
        world.every(options.proposer_crashes, lambda: self._on_some_proposer(self._kill))
        world.every(options.primary_crashes, lambda: self.primary.crash(then=lambda: None))
        world.every(options.clones, self._clone_primary)
        world.every(options.settles, self._settle)

    def _on_some_proposer(self, what: Callable[[ProposerNode], object]) -> None:
        alive = [p for p in self.proposers if p.is_alive]
        if alive:
            what(self.world.random.choice(alive))

    def _kill(self, proposer: ProposerNode) -> None:
        proposer.kill()
        self._start_later()

    def _start_later(self) -> None:
        """A supervisor starts a process again, as a new proposer."""

        def start() -> None:
            alive = [p for p in self.proposers if p.is_alive]
            if not self.world.is_healed and len(alive) < self.world.options.proposers:
                self._start_proposer(take_over=self.world.chance(self.world.options.take_over))

        self.world.later(self.world.random.uniform(200, 6000), start)

    def _start_proposer(
        self, *, take_over: bool, purpose: Purpose = Purpose.ATTACH, primary: Primary | None = None
    ) -> ProposerNode:
        self._names += 1
        attached = primary or self.world.random.choice(self.primaries[-2:])
        proposer = ProposerNode(
            self.world,
            f"p{self._names}",
            self.safekeepers,
            attached,
            (self.acked, self.leaders),
            purpose=purpose,
            take_over=take_over,
            on_stop=self._on_stop,
            on_ambush=self._kill,
        )
        self.proposers = [p for p in self.proposers if p.is_alive] + [proposer]
        return proposer

    def _on_stop(self, stop: Stop) -> None:
        if not self.world.is_healed:
            self._start_later()

    def _settle(self) -> None:
        self._start_proposer(take_over=True, purpose=Purpose.SETTLE)

    def _partition(self) -> None:
        """One direction, or both, between a proposer and some safekeepers, for some seconds."""
        world, random = self.world, self.world.random

        def cut(proposer: ProposerNode) -> None:
            count = random.randint(1, max(1, len(self.safekeepers) - 1))
            chosen = random.sample(self.safekeepers, count)
            pairs = set()
            for node in chosen:
                ways = [(proposer.name, node.name), (node.name, proposer.name)]
                pairs |= set(random.sample(ways, random.choice((1, 2))))
            world.blocked |= pairs
            world.say(proposer.name, f"partition {sorted(pairs)}")
            world.later(random.uniform(500, 15_000), lambda: world.blocked.difference_update(pairs))

        self._on_some_proposer(cut)

    def _clone_primary(self) -> None:
        """Somebody starts a copy of the server, taken some time ago; both may go on running."""
        past_lsn = self.primary.maker.start_lsn
        at_lsn = self.primary.flush_lsn
        if self.world.random.random() < 0.5:
            at_lsn = Lsn(self.world.random.randint(past_lsn, at_lsn))
        clone = self.primary.clone(f"pg{len(self.primaries) + 1}", at_lsn)
        self.world.say(clone.name, f"clone of {self.primary.name} ends at {clone.flush_lsn}")
        self.primaries.append(clone)
        self.primary = clone

    def _write_for_ever(self) -> None:
        for primary in self._writing or self.primaries[-2:]:
            primary.write()
        mean_ms = 1000 / self.world.options.records
        self.world.later(self.world.random.expovariate(1 / mean_ms), self._write_for_ever)

    def _heal(self) -> None:
        world = self.world
        world.say("----", f"heal; acknowledged up to {self.acked.end_lsn}")
        world.is_healed = True
        world.blocked.clear()
        for proposer in self.proposers:
            proposer.kill()
        self.proposers = []
        for node in self.safekeepers:
            node.heal()
        world.run_until(world.now_ms + 5000)

    def _demand_progress(self) -> None:
        """With a server that seems to have all of it; else with one restored from a settled log."""
        survivor = self._survivor()
        if survivor is not None and self._goes_on_with(survivor):
            return
        self._settle_for_good()
        if not self._goes_on_with(self._restore()):
            raise NoProgress("the restored server was refused")

    def _survivor(self) -> Primary | None:
        """A server that has every acknowledged byte and does not contradict the longest log."""
        for primary in reversed(self.primaries):
            wal = primary.maker.read(primary.maker.start_lsn, primary.flush_lsn)
            if wal[: len(self.acked.wal)] == self.acked.wal and self._agrees(primary):
                return primary
        return None

    def _best_log(self) -> tuple[WalStore, Lsn]:
        """The log that an election among all would choose, and its record end."""

        def rank(driver: Driver) -> tuple[Ballot, Lsn]:
            acceptor = driver.acceptor
            last = cut(acceptor.durable.history, acceptor.flush_lsn)[-1]
            return last.ballot, acceptor.flush_lsn

        drivers = [n.driver for n in self.safekeepers if n.driver is not None]
        best = max(drivers, key=rank)
        return best.store, best.store.record_end(best.acceptor.flush_lsn).end_lsn

    def _agrees(self, primary: Primary) -> bool:
        store, end_lsn = self._best_log()
        if end_lsn > primary.flush_lsn:
            return False
        wal = store.read(store.first_lsn, end_lsn)
        return wal == primary.maker.read(store.first_lsn, end_lsn)

    def _goes_on_with(self, primary: Primary) -> bool:
        """False if it is refused: another branch may win an election among fewer."""
        self.primary, self.primaries = primary, [primary, *self.primaries]
        if not primary.is_up:
            primary._restart(lambda: None)
        proposer = self._start_proposer(take_over=True, primary=primary)
        self._writing = [primary]
        try:
            self._wait_for_more(proposer)
        except NoProgress:
            if proposer.stop is not None and proposer.stop.outcome is Outcome.REFUSED:
                return False
            raise
        self._shake(proposer, primary)
        return True

    def _shake(self, proposer: ProposerNode, primary: Primary) -> None:
        """One thing breaks at a time, and the same leader goes on each time."""
        shocks: list[Callable[[], None]] = [
            lambda: primary.crash(then=lambda: None),
            self.world.random.choice(self.safekeepers).crash,
            proposer.break_one,
            lambda: primary.crash(then=lambda: None),
        ]
        for shock in shocks:
            shock()
            self._wait_for_more(proposer)

    def _wait_for_more(self, proposer: ProposerNode) -> None:
        """New records are acknowledged, and every safekeeper has them."""
        world = self.world
        wanted_lsn = max(self.acked.end_lsn, proposer.primary.flush_lsn) + 1

        def is_done() -> bool:
            return self.acked.end_lsn >= wanted_lsn and self._are_equal()

        stop_ms = world.now_ms + HEAL_S * 1000
        world.run_until(stop_ms, stop=lambda: is_done() or not proposer.is_alive)
        if not is_done():
            where = [(n.name, n.driver and n.driver.acceptor.flush_lsn) for n in self.safekeepers]
            raise NoProgress(
                f"{HEAL_S} s after healing: acknowledged {self.acked.end_lsn}, wanted "
                f"{wanted_lsn}; {where}; {proposer.stop}"
            )

    def _settle_for_good(self) -> None:
        """The first step of every failover."""
        proposer = self._start_proposer(take_over=True, purpose=Purpose.SETTLE)
        stop_ms = self.world.now_ms + HEAL_S * 1000
        self.world.run_until(stop_ms, stop=lambda: not proposer.is_alive)
        if proposer.stop is None or proposer.stop.settled is None:
            raise NoProgress(f"settle ended with {proposer.stop}")
        _, end_lsn = self._best_log()
        if proposer.stop.settled.consensus_lsn != end_lsn:
            raise Violation(f"settled at {proposer.stop.settled}, the log ends at {end_lsn}")

    def _restore(self) -> Primary:
        """What `restore` will do: a server rebuilt from the settled log."""
        store, end_lsn = self._best_log()
        wal = store.read(store.first_lsn, end_lsn)
        self.acked.hold_against("the restored server", wal, store.first_lsn)
        for primary in self.primaries:
            maker = primary.maker
            if end_lsn <= maker.end_lsn and maker.read(store.first_lsn, end_lsn) == wal:
                clone = primary.clone("pgR", end_lsn)
                self.world.say("pgR", f"restored, ends at {clone.flush_lsn}")
                return clone
        raise Violation(f"no primary ever wrote what the safekeepers hold up to {end_lsn}")

    def _are_equal(self) -> bool:
        """Every safekeeper has all that is acknowledged, the same bytes."""
        drivers = [(node.name, node.driver) for node in self.safekeepers]
        if any(d is None or d.acceptor.commit_lsn < self.acked.end_lsn for _, d in drivers):
            return False
        for name, driver in drivers:
            assert driver is not None
            first_lsn = max(driver.store.first_lsn, self.acked.start_lsn)
            wal = driver.store.read(first_lsn, self.acked.end_lsn)
            self.acked.hold_against(name, wal, first_lsn)
        return True
