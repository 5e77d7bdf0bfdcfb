"""Targeted trouble: short plays that make the states likely in which a rule is needed.

Random faults alone rarely put two diverging logs, a vote and a late message into one second. A plot
does, with its details drawn from the seed. The judges alone decide if the outcome is right. A seed
draws up to three plots, and they are played one after the other until it heals.

    rivals            two servers part from each other; in turns a proposer of each reaches other
                      safekeepers, gets somewhere, and is killed, cut off or held back
    unfinished_term   Raft's figure 8: a tail on one, a rival's on another, the first one again
    held_back         what a leader sent is held back until its successor has been elected
    outrun            a leader writes on while the primary's answer to its successor travels
    power_failure     all safekeepers lose power behind a commit
    lost_disk         a member comes back without its log, and may not vote
    sealed            settle --seal, then proposers with and without --resume
    promotion         standbys are promoted and take over, or have left out what they must not
    older_copy        the server is replaced by an older copy of itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.proof.sim import faults
from tests.proof.sim.disk_trouble import Loss
from tests.proof.sim.primary import Primary
from tests.proof.sim.proposer_node import ProposerNode
from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.proof.sim.scene import Scene
from tests.proof.sim.servers import best_log, restored, survivor_of
from tests.proof.sim.world import Plot, Until
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus.campaign import Phase, Purpose

ELECTION_MS = 2500
TAIL_BYTES = 300_000  # two reads of a donor and some


def schedule(scene: Scene) -> None:
    """Schedule the seed's plots in turn, with a pause before each."""
    world, names = scene.world, scene.world.options.plots
    if not names:
        return

    def next_one(index: int) -> None:
        if world.is_healed:
            return
        name = names[index % len(names)]
        world.facts[f"plots played: {name}"] += 1
        world.say("----", f"plot {name}")
        world.play(PLOTS[name](scene), lambda: pause(index + 1))

    def pause(index: int) -> None:
        world.is_calm = False
        if scene.is_staged:
            scene.is_staged = False
            for _ in range(world.options.proposers):
                scene.start_later()
        mean_ms = world.options.plot_pause_ms
        world.later(world.random.expovariate(1 / mean_ms), lambda: next_one(index))

    pause(0)


def _elected(proposer: ProposerNode, most_ms: float = ELECTION_MS) -> Until:
    return Until(lambda: proposer.has_led or not proposer.is_alive, most_ms)


def _write(primary: Primary, most: int) -> None:
    for _ in range(primary.world.random.randint(0, most)):
        primary.write()


def _some(scene: Scene, *, least: int, most: int) -> list[SafekeeperNode]:
    nodes, random = scene.safekeepers, scene.world.random
    return random.sample(nodes, random.randint(min(least, len(nodes)), min(most, len(nodes))))


def _stage(scene: Scene) -> Until:
    """Let the plot alone start and end proposers from here on; wait until the others are there."""
    scene.is_staged, scene.world.is_calm = True, scene.world.options.is_calm
    scene.kill_all()
    if not scene.world.is_calm:
        return Until(lambda: True, 0)
    return Until(lambda: all(n.driver is not None or n.loss for n in scene.safekeepers), 5000)


def _in_step(scene: Scene) -> Plot:
    """Let a leader with all safekeepers bring them to one end, and die."""
    server = survivor_of(scene) or restored(scene) or scene.keeper_of_all()
    scene.adopt(server)
    server.restart()
    proposer = scene.start_proposer(primary=server, take_over=True, resumes=True)
    yield _elected(proposer)
    server.write()

    def all_have_it() -> bool:
        well = [node for node in scene.safekeepers if node.loss is None]
        return all(node.flush_lsn >= server.flush_lsn for node in well)

    yield Until(lambda: not proposer.is_alive or all_have_it(), 1500)
    proposer.kill()


def _parted(scene: Scene) -> tuple[Primary, Primary]:
    """Return two servers that agree with the log, and write different WAL from now on."""
    good = survivor_of(scene) or scene.keeper_of_all()
    good.restart()
    log = best_log(scene)
    end_lsn = good.flush_lsn if log is None else min(good.flush_lsn, log[1])
    other = scene.add_clone(good, scene.world.random.choice((end_lsn, good.flush_lsn)))
    scene.primary = good
    return good, other


def rivals(scene: Scene) -> Plot:
    random, network = scene.world.random, scene.network
    yield _stage(scene)
    if random.random() < 0.5:
        yield from _in_step(scene)
    servers = _parted(scene)
    ack, votes = scene.configuration.ack_quorum, scene.configuration.vote_quorum
    cut_off: list[tuple[ProposerNode, Sequence[SafekeeperNode]]] = []
    for turn in range(random.randint(2, 6)):
        server = servers[turn % 2] if random.random() < 0.8 else random.choice(servers)
        reached = _some(scene, least=votes, most=max(ack, votes))
        proposer = scene.start_proposer(primary=server, take_over=True, reaches=reached)
        others = [node for node in scene.safekeepers if node not in reached]
        cut_off.append((proposer, others))
        yield _elected(proposer)
        if random.random() < 0.3:
            random.choice(reached).stall(random.uniform(100, 3000))
        _write(server, 4)
        yield _got_somewhere(proposer, reached)
        leave = random.choice(("kill", "kill", "isolate", "hold", "crash", "stay"))
        if leave == "kill":
            proposer.kill()
        elif leave == "isolate":
            network.cut(proposer.ways(reached))
            cut_off.append((proposer, reached))
        elif leave == "hold":
            _hold_back(scene, proposer, random.sample(reached, random.randint(1, len(reached))))
        elif leave == "crash":
            proposer.kill()
            for node in random.sample(reached, random.randint(1, len(reached))):
                node.crash()
        _write(server, 2)
    yield random.uniform(0, 2000)
    for proposer, nodes in cut_off:
        network.mend(proposer.ways(nodes))
    yield random.uniform(0, 1000)


def _got_somewhere(proposer: ProposerNode, reached: Sequence[SafekeeperNode]) -> Until:
    """Wait until a safekeeper of it, or PostgreSQL, has what it wrote, or just for some time."""
    random, server = proposer.world.random, proposer.primary

    def one_has_it() -> bool:
        drivers = [node.driver for node in reached if node.driver is not None]
        return any(
            d.acceptor.durable.ballot == proposer.ballot
            and d.acceptor.elected
            and d.acceptor.flush_lsn >= server.flush_lsn
            for d in drivers
        )

    aims: list[Callable[[], bool]] = [
        lambda: False,
        one_has_it,
        lambda: proposer.reported_lsn >= server.flush_lsn,
    ]
    aim = random.choice(aims)
    return Until(lambda: not proposer.is_alive or aim(), random.choice((5, 50, 300, 1500)))


def _hold_back(
    scene: Scene, proposer: ProposerNode, nodes: Sequence[SafekeeperNode], most_ms: float = 4000
) -> None:
    """Hold back the messages that it sends from now on, and deliver them together, much later."""
    ways = [(proposer.name, node.name) for node in nodes]
    scene.network.cut(ways)
    scene.world.trouble("messages held back", proposer.name, f"held back: {ways}")
    held_ms = scene.world.random.uniform(100, most_ms)
    scene.world.later(held_ms, lambda: scene.network.mend(ways))


def held_back(scene: Scene) -> Plot:
    """Let the old leader reach the successor's followers when their log is just as long as then."""
    random, nodes = scene.world.random, scene.safekeepers
    yield _stage(scene)
    yield from _in_step(scene)
    server, other = _parted(scene)
    old = scene.start_proposer(primary=server, take_over=True)
    yield _elected(old)
    yield Until(lambda: old.reported_lsn >= server.flush_lsn, 300)
    _hold_back(scene, old, random.sample(nodes, random.randint(1, len(nodes))), 2000)
    server.write()
    _write(server, 3)
    yield random.uniform(0, 100)
    new = scene.start_proposer(primary=random.choice((server, other, other)), take_over=True)
    yield _elected(new)
    yield random.uniform(0, 2500)
    _write(new.primary, 3)
    yield random.uniform(0, 500)


def outrun(scene: Scene) -> Plot:
    """Let a leader write on while the answer of the same server travels to its successor.

    A member that greets or votes meanwhile has WAL that the server lacks by its answer (R22).
    """
    random, network, nodes = scene.world.random, scene.network, scene.safekeepers
    asked = random.sample(nodes, scene.configuration.vote_quorum)
    others = [node for node in nodes if node not in asked]
    if not others:
        return
    yield _stage(scene)
    yield from _in_step(scene)
    server = survivor_of(scene) or scene.keeper_of_all()
    server.restart()
    old = scene.start_proposer(primary=server, take_over=True)
    yield _elected(old)
    yield Until(lambda: old.reported_lsn >= server.flush_lsn, 1000)
    network.cut(old.ways(asked))
    greets_late = random.random() < 0.5
    reached = asked if greets_late else nodes
    new = scene.start_proposer(primary=server, take_over=True, reaches=reached)
    new.answers_late_ms = random.uniform(100, 1000)
    yield Until(lambda: new.core.phase is Phase.CHECKING or not new.is_alive, 1000)
    if not greets_late:
        network.cut(new.ways(others))
        yield Until(lambda: new.core.phase is Phase.CHECKING_VOTES or not new.is_alive, 2000)
    yield new.answers_late_ms * random.random()
    server.write()
    _write(server, 3)
    yield _has(others[0], server.flush_lsn)
    network.mend(new.ways(others))
    yield _elected(new)
    network.mend(old.ways(asked))


def unfinished_term(scene: Scene) -> Plot:
    """Play Raft's figure 8: a tail comes back, and dies half spread.

    A leader dies with its tail on one safekeeper. A rival that does not know of it leaves one on
    another. Then the first server's proposer comes back, spreads its old tail, and dies with it
    half spread. The rival comes back as well.
    """
    random, network, nodes = scene.world.random, scene.network, scene.safekeepers
    if len(nodes) < 3:
        return
    yield _stage(scene)
    yield from _in_step(scene)
    servers = _parted(scene)
    first, last, *middle = random.sample(nodes, len(nodes))
    elect = scene.configuration.vote_quorum
    for turn in range(random.choice((4, 4, 6))):
        server, keeper = servers[turn % 2], (first, last)[turn % 2]
        others = random.sample(middle, min(len(middle), max(1, elect - 1)))
        proposer = scene.start_proposer(primary=server, take_over=True, reaches=[keeper, *others])
        yield _elected(proposer)
        if turn < 2:
            network.cut(proposer.ways(others))
            for _ in range(TAIL_BYTES // 20_000):
                server.write(20_000)
            yield _has(keeper, server.flush_lsn)
        elif proposer.has_led:
            yield _halfway(proposer.leader.start_lsn, others)
            yield random.choice((0, 0, 20, 200)) * random.random()
        proposer.kill()
        if turn == 2 or (turn > 2 and random.random() < 0.5):
            keeper.crash()
    yield random.uniform(0, 2000)


def _has(node: SafekeeperNode, lsn: Lsn) -> Until:
    def has_it() -> bool:
        return node.flush_lsn >= lsn

    return Until(has_it, 1000)


def _halfway(start_lsn: Lsn, nodes: Sequence[SafekeeperNode]) -> Until:
    """Wait until one follows the leader and has some of the WAL below the term's start."""

    def one_is() -> bool:
        acceptors = [n.driver.acceptor for n in nodes if n.driver is not None]
        return any(
            a.elected and a.flush_lsn + TAIL_BYTES > start_lsn > a.flush_lsn for a in acceptors
        )

    return Until(one_is, 1000)


def power_failure(scene: Scene) -> Plot:
    random = scene.world.random
    _write(scene.primary, 5)
    yield random.uniform(0, 3 * scene.world.options.delay_ms + 3 * scene.world.options.disk_ms)
    faults.fail_power(scene)
    yield random.uniform(500, 5000)


def lost_disk(scene: Scene) -> Plot:
    """Lose a disk, and then hold an election that could only be won with its vote."""
    random, elect = scene.world.random, scene.configuration.vote_quorum
    well = [n for n in scene.safekeepers if n.loss is None and n.driver is not None]
    if scene.disks_to_lose() > 0 and well:
        random.choice(well).lose_disk(random.choice((*Loss, Loss.REBORN)))
    lost = [node for node in scene.safekeepers if node.loss is not None]
    yield random.uniform(0, 5000)
    if not lost:
        return
    yield _stage(scene)
    others = [node for node in scene.safekeepers if node.loss is None]
    reached = [*lost, *random.sample(others, max(0, elect - len(lost)))]
    server = scene.keeper_of_all()
    server.restart()
    proposer = scene.start_proposer(primary=server, take_over=True, reaches=reached)
    yield _elected(proposer, 2000 + 30 * scene.world.options.delay_ms)
    _write(server, 3)
    yield random.uniform(0, 500)
    proposer.kill()


def sealed(scene: Scene) -> Plot:
    random = scene.world.random
    yield _stage(scene)
    scene.world.trouble("seals")
    settling = scene.start_proposer(take_over=True, purpose=Purpose.SEAL)
    yield Until(lambda: not settling.is_alive, 5000)
    server = scene.keeper_of_all()
    server.restart()
    for resumes in random.sample((False, False, True), 3):
        proposer = scene.start_proposer(primary=server, take_over=True, resumes=resumes)
        yield _elected(proposer)
        _write(server, 3)
        yield random.uniform(0, 1000)
        if random.random() < 0.5:
            proposer.kill()


def promotion(scene: Scene) -> Plot:
    """Promote once or twice; some promotions leave out WAL, and some take a number in use."""
    random = scene.world.random
    yield _stage(scene)
    for _ in range(random.randint(1, 2)):
        if random.random() < 0.7:
            purpose = random.choice((Purpose.SETTLE, Purpose.SEAL))
            settling = scene.start_proposer(take_over=True, purpose=purpose)
            yield Until(settling.is_gone, 5000)
        server, log = survivor_of(scene) or scene.keeper_of_all(), best_log(scene)
        end_lsn = server.flush_lsn if log is None else min(log[1], server.flush_lsn)
        first_lsn = min(scene.oracles.acknowledged.start_lsn, end_lsn)
        older_lsn = Lsn(random.randint(max(first_lsn, end_lsn - 3000), end_lsn))
        at_lsn = random.choice((end_lsn, end_lsn, server.flush_lsn, older_lsn))
        taken = max(p.timeline for p in scene.primaries)
        number = random.choice((taken + 1, server.timeline + 1))
        promoted = scene.add_clone(server, at_lsn, promoted_to=number)
        if promoted.flush_lsn < first_lsn:
            scene.primaries.remove(promoted)  # the log is empty, and starts inside a record
            return
        if scene.world.options.is_bulk:
            promoted.keep_as_standby(min(node.durable_commit_lsn for node in scene.safekeepers))
        _write(promoted, 3)
        proposer = scene.start_proposer(primary=promoted, take_over=random.random() < 0.8)
        yield _elected(proposer)
        _write(promoted, 5)
        yield random.uniform(0, 1500)
        for node in random.choices(scene.safekeepers, k=random.choice((0, 0, 1, 2))):
            node.crash()
        if random.random() < 0.5:  # the deposed server comes back
            deposed = scene.start_proposer(primary=server, take_over=True, resumes=True)
            _write(server, 2)
            yield Until(deposed.is_gone, 3000)
            deposed.kill()
        proposer.kill()
        scene.primary = promoted if promoted.has_all_of(scene.oracles.acknowledged) else server
    yield random.uniform(0, 1000)


def older_copy(scene: Scene) -> Plot:
    """Restore the server in place as an older copy: the newer one is gone for good."""
    random, server = scene.world.random, scene.primary
    faults.clone_primary(scene)
    if random.random() < 0.5:
        server.stop()
    proposer = scene.start_proposer(primary=scene.primary, take_over=True)
    yield _elected(proposer)
    _write(scene.primary, 3)
    yield random.uniform(0, 2000)


PLOTS: dict[str, Callable[[Scene], Plot]] = {
    plot.__name__: plot
    for plot in (
        rivals,
        unfinished_term,
        held_back,
        outrun,
        power_failure,
        lost_disk,
        sealed,
        promotion,
        older_copy,
    )
}
