"""A scene: the safekeepers, servers, proposers, operators and oracles of one seed.

A scene has no plan. The faults, the plots and the healing act on it (story.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack

from tests.proof.sim import zones
from tests.proof.sim.archive import Archived
from tests.proof.sim.holders import Holders
from tests.proof.sim.network import Network
from tests.proof.sim.oracle import Oracles, Standing
from tests.proof.sim.primary import Primary
from tests.proof.sim.proposer_node import ProposerNode
from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.proof.sim.troubles import AskedOptions
from tests.proof.sim.world import World
from tests.support.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind, member_name
from walkeeper_proposer.consensus.campaign import Purpose
from walkeeper_proposer.consensus.members.changing import Goal
from walkeeper_proposer.consensus.proposer_events import Stop
from walkeeper_safekeeper.consensus.durable import Durable

SEGMENT_BYTES = 65536
KEPT_TAIL_BYTES = 20_000


class Command(Protocol):
    """An operator's command that changes members (replacing.py)."""

    goal: Goal
    is_over: bool
    coming: dict[int, Any]  # newcomers


class Scene:
    """The world of one seed. A method raises what an oracle finds."""

    kind = LogKind.PHYSICAL
    proposer_type: type[ProposerNode] = ProposerNode

    def __init__(
        self,
        seed: int,
        *,
        show: Callable[[str], None] | None = None,
        **asked: Unpack[AskedOptions],
    ) -> None:
        world = World(seed, show=show, **asked)
        self.world = world
        self.network = Network(world)
        start_lsn = Lsn(SEGMENT_BYTES * world.random.choice((1, 3, 65536)))
        self.oracles = Oracles(start_lsn)
        maker = self._first_wal(start_lsn)
        self.configuration = self._configuration(start_lsn)
        self.archived = Archived()
        self.safekeepers = self._safekeepers()
        self.primary = Primary(world, "pg1", maker, self.oracles.acknowledged)
        self.primaries = [self.primary]
        self.writing: list[Primary] | None = None  # if None, the two that were started last
        self.proposers: list[ProposerNode] = []
        self.operators: list[Command] = []
        self.holders = Holders()
        self.is_staged = False  # a plot directs the proposers, their supervisors hold still
        self._names = 0

    def _first_wal(self, start_lsn: Lsn) -> WalMaker:
        """Make the primary's WAL for a log that begins at the start of its current segment."""
        random, options = self.world.random, self.world.options
        if options.starts_inside_record:
            before_lsn = Lsn(start_lsn - SEGMENT_BYTES)
            maker = WalMaker(random, segment_bytes=SEGMENT_BYTES, start_lsn=before_lsn)
            while maker.end_lsn <= start_lsn:
                maker.record(random.choice((200, 5000, 40_000)), 0, 1)
            return maker
        maker = WalMaker(random, segment_bytes=SEGMENT_BYTES, start_lsn=start_lsn)
        for _ in range(random.randrange(4)):
            maker.record(200, 0, 1)
        return maker

    def _configuration(self, start_lsn: Lsn) -> Configuration:
        """Make one configuration, the same on every member (R17)."""
        options, random = self.world.options, self.world.random
        incarnations = [random.randbytes(16) for _ in range(options.safekeepers)]
        configuration = Configuration(
            generation=1,
            log_uuid=random.randbytes(16),
            system_id=SYSTEM_ID,
            segment_bytes=SEGMENT_BYTES,
            server_version="15.18",
            kind=self.kind,
            creation_lsn=start_lsn,
            timeline=1,
            members=tuple(member_name(i + 1, inc) for i, inc in enumerate(incarnations)),
            ack_quorum=options.ack_quorum,
        )
        if not options.has_zones:
            return configuration
        first = zones.first_set(self.world.seed, configuration.members, options.ack_quorum)
        return configuration.having(first)

    def _safekeepers(self) -> list[SafekeeperNode]:
        configuration, durables = self.configuration, []
        start_lsn, names = configuration.creation_lsn, configuration.members
        entry = Fragment(NO_BALLOT, start_lsn, 1, False, names, configuration.ack_quorum)
        for number, member in enumerate(names, 1):
            durable = Durable(
                acceptor_id=number,
                incarnation=bytes.fromhex(member.partition("#")[2]),
                log_uuid=configuration.log_uuid,
                configuration=configuration,
                history=(entry,),
                commit_lsn=start_lsn,
                restart_lsn=start_lsn,
                reached_lsn=start_lsn,
            )
            durables.append(durable)
        return [self._safekeeper(number, durable) for number, durable in enumerate(durables, 1)]

    def _safekeeper(self, number: int, durable: Durable) -> SafekeeperNode:
        node = SafekeeperNode(self.world, number, durable, self.oracles, self.archived)
        node.on_changed, node.on_removed = self.judge_disks, self.judge_removal
        node.on_committed = self.judge_committed
        return node

    def add_safekeeper(self, durable: Durable) -> SafekeeperNode:
        """Add a newcomer, in the place of a member."""
        node = self._safekeeper(len(self.safekeepers) + 1, durable)
        self.safekeepers.append(node)
        for proposer in self.alive():
            proposer.add_link()
        return node

    # Proposers and their supervisors

    def start_proposer(
        self,
        *,
        primary: Primary | None = None,
        purpose: Purpose = Purpose.ATTACH,
        take_over: bool = False,
        resumes: bool | None = None,
        reaches: Sequence[SafekeeperNode] | None = None,
    ) -> ProposerNode:
        """Start a proposer.

        With `reaches` all other safekeepers are cut off, until `network.mend(proposer.ways(…))`.
        """
        self._names += 1
        name = f"p{self._names}"
        if resumes is None:
            resumes = self.world.chance(0.5)
        if reaches is not None:
            others = [node for node in self.safekeepers if node not in reaches]
            self.network.cut([(name, node.name) for node in others])
            self.network.cut([(node.name, name) for node in others])
        proposer = self.proposer_type(
            self.network,
            name,
            self.safekeepers,
            primary or self._some_primary(),
            self.oracles,
            self,
            purpose=purpose,
            take_over=take_over,
            resumes=resumes,
        )
        self.proposers = [p for p in self.proposers if p.is_alive] + [proposer]
        return proposer

    def _some_primary(self) -> Primary:
        """Choose mostly a server that may be accepted; operators also try one to be refused."""
        if self.world.chance(0.6):
            return self.keeper_of_all()
        return self.world.random.choice(self.primaries[-2:])

    def alive(self) -> list[ProposerNode]:
        return [p for p in self.proposers if p.is_alive]

    def kill_all(self) -> None:
        for proposer in self.alive():
            proposer.kill()

    def stopped(self, proposer: ProposerNode, stop: Stop) -> None:
        self.start_later()

    def ambushed(self, proposer: ProposerNode) -> None:
        """Kill the proposer just after its election."""
        proposer.kill()
        self.start_later()

    def start_later(self) -> None:
        """Start the process again later, as a supervisor does, as a new proposer."""

        def start() -> None:
            enough = len(self.alive()) >= self.world.options.proposers
            if not (self.world.is_healed or self.is_staged or enough):
                take_over = self.world.chance(self.world.options.take_over)
                self.start_proposer(take_over=take_over)

        self.world.later(self.world.random.uniform(200, 6000), start)

    # Servers

    def add_clone(self, of: Primary, at_lsn: Lsn, *, promoted_to: int | None = None) -> Primary:
        """Start a copy of a server as of `at_lsn`; both may go on running."""
        clone = of.clone(f"pg{len(self.primaries) + 1}", at_lsn, promoted_to=promoted_to)
        text = f"clone of {of.name} on timeline {clone.timeline} ends at {clone.flush_lsn}"
        what = "servers cloned" if promoted_to is None else "promotions"
        self.world.trouble(what, clone.name, text)
        self.primaries.append(clone)
        return clone

    def adopt(self, server: Primary) -> None:
        """Count the server as one of the run's, also if it was restored just now."""
        if server not in self.primaries:
            self.primaries.append(server)

    def keeper_of_all(self) -> Primary:
        """Return the newest server that has every acknowledged byte, or the newest of all."""
        acked = self.oracles.acknowledged
        for primary in reversed(self.primaries):
            if primary.has_all_of(acked):
                return primary
        return self.primaries[-1]

    # Members

    def newest_members(self) -> Configuration:
        """Return the configuration with the greatest generation that any safekeeper holds."""
        held = [node.configuration for node in self.safekeepers if node.loss is None]
        return max(held, key=lambda configuration: configuration.generation)

    def members(self) -> list[SafekeeperNode]:
        """Return the safekeepers that have their disks and were not replaced."""
        well = [node for node in self.safekeepers if node.loss is None]
        if not self.world.options.replaces:
            return well
        return [node for node in well if node.member in self.newest_members().everyone]

    def _is_resizing(self) -> bool:
        """Return True while a command makes a set in which no disk may be lost before the end."""
        return any(not each.is_over and not each.goal.is_replacement for each in self.operators)

    # Disks

    def lost_disks(self) -> int:
        lost = [node for node in self.safekeepers if node.loss is not None]
        if self.world.options.replaces:
            lost = [node for node in lost if node.member in self.newest_members().everyone]
        return len(lost)

    def disks_to_lose(self) -> int:
        """Return how many more disks may be lost.

        The members that remain can elect and commit, and have all acknowledged WAL.
        """
        options = self.world.options
        if options.replaces and (self.newest_members().target or self._is_resizing()):
            return 0
        return zones.disks_to_lose(self.newest_members().present) - self.lost_disks()

    def judge_removal(self, by: SafekeeperNode, first_lsn: Lsn) -> None:
        """Check that every member's disk has the end of the WAL that retention has removed."""
        committed = self.oracles.committed
        begin_lsn = Lsn(max(committed.start_lsn, int(first_lsn) - KEPT_TAIL_BYTES))
        wal = committed.read(begin_lsn, first_lsn)
        nodes = self.members()
        lacking = [node.name for node in nodes if not node.disks.holds(begin_lsn, wal)]
        self.oracles.retention.check(by.name, first_lsn, lacking)

    def judge_disks(self, changed: SafekeeperNode) -> None:
        """Check the acknowledged WAL after a restart or a cut.

        It survives any election, and enough disks still keep it.
        """
        begin_lsn, wal = self.oracles.acknowledged.tail(KEPT_TAIL_BYTES)
        standings = self._judge_survival("acknowledged", begin_lsn, wal)
        holding = [s.who for s in standings if s.has_it]
        if self.world.options.replaces:
            pass  # the report judges which members must be a quorum
        elif len(holding) < self.world.options.ack_quorum - self.lost_disks():
            text = f"only {holding} keep what is acknowledged up to {begin_lsn + len(wal)}"
            self.oracles.acknowledged.fail(f"with {changed.name} changed, {text}")
        self.judge_committed()

    def judge_committed(self) -> None:
        begin_lsn, wal = self.oracles.committed.tail(KEPT_TAIL_BYTES)
        self._judge_survival("committed", begin_lsn, wal)

    def _judge_survival(self, what: str, begin_lsn: Lsn, wal: bytes) -> list[Standing]:
        nodes = [node for node in self.safekeepers if node.loss is None]
        standings = [Standing(n.name, n.rank, n.disks.holds(begin_lsn, wal)) for n in nodes]
        if self.world.options.replaces:
            if self.world.options.late:
                self.holders.check(nodes)
            self._judge_changing(f"{what} up to {begin_lsn + len(wal)}", standings)
            return standings
        member = {node.name: node.member for node in nodes}

        def elects(voters: Sequence[str]) -> bool:
            return self.configuration.elects([member[name] for name in voters])

        self.oracles.survival.check(what, begin_lsn + len(wal), standings, elects)
        return standings

    def _judge_changing(self, what: str, standings: Sequence[Standing]) -> None:
        """Judge that no safekeeper which lacks the WAL could win an election now.

        The election is held with the members of any configuration that a safekeeper holds.
        A safekeeper without newer members may vote with older ones, or learns of the newer ones. A
        safekeeper with newer members never votes with the older ones.
        """
        nodes = {node.name: node for node in self.safekeepers}
        held = {s.who: nodes[s.who].configuration for s in standings}
        for configuration in {c.generation: c for c in held.values()}.values():
            able = [s for s in standings if held[s.who].generation <= configuration.generation]
            for lacking in able:
                voters = [nodes[s.who].member for s in able if s.rank <= lacking.rank]
                is_one = nodes[lacking.who].member in configuration.everyone
                if is_one and not lacking.has_it and configuration.elects(voters):
                    self.oracles.survival.fail(
                        f"{what}, but {lacking.who} lacks some of it and would win an election of "
                        f"generation {configuration.generation} with {sorted(voters)}"
                    )
