"""The cluster stage with real WAL: one primary's records, and the shipping store and driver below.

    stored N [ack=K]                  N safekeepers, each with two faulty disks; segments of 1 MiB
    attach B reach=N,N | settle B reach=N,N        and reach, kill, tick, hold, deliver, …
    record BYTES | record to=L        the primary writes so much data in a record; up to L exactly
    switch                            pg_switch_wal()
    begin BYTES upto=L | rest         it flushes a record's bytes below L only; then the others
    restart                           the primary crashes, forgets what it had not flushed, goes on
    copy L                            a copy of it as of L is the primary now, with WAL of its own
    power N after=K                   N's power is cut after its next K operations on WAL files
    start N [process]                 it is started again, after a power cut that came or comes now;
                                      or only its process dies, and the page cache lives on
    space N BYTES                     N's disk holds so much and no more
    fail N                            the next fdatasync of N's WAL fails
    damage N L                        the byte at L changes on N's disk, behind everybody's back
    retain N                          N removes what R14 allows; nothing else keeps WAL
    ends                              where each log ends, and whether its bytes are the primary's

The WAL is wal_maker's: real pages, records, CRCs. A disk keeps some subset of the sectors that were
not synced. Positions are LSNs; the log begins at 0/100000, a page is 0x2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from tests.proof.sim.primary import COMMIT_RMID
from tests.support.cluster_stage import ClusterStage
from tests.support.faulty_disk import FaultyDisk, PowerCut
from tests.support.faulty_shelf import FaultyShelf
from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SEGMENT_BYTES,
    SYSTEM_ID,
    configuration_of,
    incarnation_of,
    lsn_of,
    parse_history,
    shown,
    shown_facts,
)
from tests.support.wal_maker import PAGE, WalMaker
from walkeeper_common.errors import CorruptWal, WalkeeperError
from walkeeper_common.history import cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Reject
from walkeeper_proposer.consensus import proposer_events as p
from walkeeper_safekeeper.consensus import acceptor_events as a
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.hosting.retention import remove_unwanted
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.log_folder import LogFolder


class _Worker:
    """The driver's port: a job is done when the stage comes to it, in this life only."""

    def __init__(self, node: StoredSafekeeper) -> None:
        self._node, self._life = node, node.life

    def submit(
        self, job: Callable[[], object], done: Callable[[object], None], *, brief: bool = False
    ) -> None:
        self._node.stage.soon(lambda: self._do(job, done))

    def at_once(self) -> Pace | None:
        return None  # the disk's report follows what came before it

    def _do(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        if self._life != self._node.life:
            return
        try:
            result = job()
        except WalkeeperError as error:
            result = error
        except PowerCut:
            self._node.lose_power()
            return
        done(result)


class StoredSafekeeper:
    """A safekeeper on two faulty disks: the Surroundings of the shipping driver."""

    def __init__(self, stage: StoredStage, number: int) -> None:
        self.stage, self.number, self.life, self.is_up = stage, number, 0, False
        self.persisted = 0
        self.is_spoilt = False
        self.disks = [FaultyDisk(Random(number)), FaultyDisk(Random(number + 100))]
        durable = Durable(
            acceptor_id=number,
            incarnation=incarnation_of(number),
            log_uuid=LOG_UUID,
            configuration=stage.configuration,
            history=parse_history(f"0:-@{CREATION_LSN}", stage.configuration),
            commit_lsn=CREATION_LSN,
            restart_lsn=CREATION_LSN,
            reached_lsn=CREATION_LSN,
        )
        self._folder().create_wal(durable)
        self._folder().save_control(durable)
        self._removed = b""  # by retention; the oracle compares from the log's beginning
        self.driver: Driver
        self.start()

    def _folder(self) -> LogFolder:
        folder, wal = self.disks
        return LogFolder(f"sk{self.number}", folder, wal, FaultyShelf(FaultyDisk(Random(0))))

    def start(self) -> None:
        """Recover, as at every start."""
        try:
            opened = self._folder().open_wal()
        except CorruptWal as error:
            verdict = "is damaged" if self.is_spoilt else "DAMAGED"
            text = str(error).partition(". Nothing was changed")[0]
            self.stage.tell(f"sk{self.number} {verdict}: {text}")
            return
        except PowerCut:
            self.lose_power()
            return
        self.life += 1
        self.is_up, self.is_spoilt = True, False
        acceptor = Acceptor(
            opened.durable,
            oldest_lsn=opened.store.first_lsn,
            flush_lsn=opened.flush_lsn,
            record_lsn=opened.record_lsn,
        )
        self.driver = Driver(
            acceptor,
            opened.store,
            self._save,
            writer=_Worker(self),
            reader=_Worker(self),
            allocator=_Worker(self),
            around=self,
        )
        for disk in self.disks:
            disk.operations_left = None

    def _save(self, durable: Durable) -> None:
        self.persisted += 1
        self._folder().save_control(durable)

    def lose_power(self) -> None:
        """Lose the WAL that was not synced, in some subset."""
        self.disks = [disk.crash() for disk in self.disks]
        self.die("has no power")

    def die(self, text: str) -> None:
        """End the process and its connections."""
        self.life += 1
        self.is_up = False
        self.stage.tell(f"sk{self.number} {text}")
        self.stage.gone(self.number)

    @property
    def acceptor(self) -> Acceptor:
        return self.driver.acceptor

    def durable_wal(self) -> bytes:
        if not self.is_up or self.is_spoilt:
            return b""
        acceptor, store = self.acceptor, self.driver.store
        return self._removed + store.read(store.first_lsn, acceptor.flush_lsn)

    def post(self, event: a.Event) -> None:
        if self.is_up:
            self.driver.post(event)

    def retain(self) -> None:
        before, store = self.durable_wal(), self.driver.store
        remove_unwanted(self.driver, self.acceptor.commit_lsn, keep_bytes=0)

        def removed() -> None:
            self._removed = before[: store.first_lsn - CREATION_LSN]
            self.stage.tell(f"sk{self.number} keeps WAL from {store.first_lsn} on")

        self.stage.soon(removed)

    # Calls of the driver

    def send(self, connection: int, message: Message) -> None:
        if isinstance(message, Reject):
            self.stage.tell(f"sk{self.number} rejects: {message.code.name}")
        self.stage.to_proposer(self.number, connection, message)

    def commit_moved(self, commit_lsn: Lsn) -> None:
        pass

    def settle_later(self, settle: Callable[[], None]) -> None:
        settle()

    def end_readers(self, above_lsn: Lsn) -> None:
        self.stage.tell(f"sk{self.number} ends readers above {above_lsn}")

    def note(self, text: str, facts: Sequence[tuple[str, object]], *_: object) -> None:
        if text not in ("following an elected proposer", "lost the proposer's connection"):
            self.stage.tell(f"sk{self.number}: {text}{shown_facts(tuple(facts))}")


class StoredStage(ClusterStage):
    """One primary; every proposer streams from it."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = WalMaker(
            Random(1),
            segment_bytes=SEGMENT_BYTES,
            start_lsn=CREATION_LSN,
            system_id=SYSTEM_ID,
        )
        self.flush_lsn = CREATION_LSN

    def run(self, line: str) -> str:
        return self._ends() if line == "ends" else super().run(line)

    def tell(self, text: str, *, at: Lsn | None = None) -> None:
        self._told.append(text if at is None else f"{text} at {at}")

    def whole_end(self, lsn: Lsn) -> Lsn:
        return self.primary.end_before(lsn)[1]

    def gone(self, number: int) -> None:
        """End every connection to a machine that is off."""
        for proposer in self.proposers.values():
            if proposer.links.pop(number, None) is not None:
                lost = p.LinkLost(number - 1)
                self.soon(partial(proposer.post, lost))

    def _do_stored(self, plain: list[str], named: dict[str, str]) -> None:
        members = int(plain[0])
        self.configuration = configuration_of(members, int(named.get("ack", "0")))
        self.safekeepers = [StoredSafekeeper(self, n) for n in range(1, members + 1)]

    # The primary

    def _wal_of(self, named: dict[str, str]) -> bytes:
        return self.primary.read(CREATION_LSN, self.flush_lsn)

    def _do_record(self, plain: list[str], named: dict[str, str]) -> None:
        size = int(plain[0]) if plain else self._data_up_to(lsn_of(named["to"]))
        # a commit, which sets a server apart from its clones
        made = self.primary.record(size, 0, COMMIT_RMID)
        assert "to" not in named or str(made.end_lsn) == named["to"], f"{made.end_lsn=}"
        self._flush(made.end_lsn)

    def _do_switch(self, plain: list[str], named: dict[str, str]) -> None:
        self._flush(self.primary.switch().end_lsn)

    def _do_begin(self, plain: list[str], named: dict[str, str]) -> None:
        made = self.primary.record(int(plain[0]))
        upto_lsn = lsn_of(named["upto"])
        assert made.start_lsn < upto_lsn < made.end_lsn, f"{made=}"
        self._flush(upto_lsn)

    def _do_rest(self, plain: list[str], named: dict[str, str]) -> None:
        self._flush(self.primary.end_lsn)

    def _flush(self, flush_lsn: Lsn) -> None:
        """Flush, and send flushed WAL as PostgreSQL's walsender does."""
        self.flush_lsn = flush_lsn
        self.tell(f"the primary ends at {flush_lsn}")
        for proposer in self.proposers.values():
            proposer.wal = bytearray(self._wal_of({}))
            proposer.stream()

    def _data_up_to(self, end_lsn: Lsn) -> int:
        """Return how much data a record has that starts next and ends at `end_lsn`."""
        begin_lsn = self.primary.end_lsn
        boundaries = range(begin_lsn.round_up(PAGE), end_lsn, PAGE)
        headers = sum(24 if lsn % SEGMENT_BYTES else 40 for lsn in boundaries)
        body = end_lsn - begin_lsn - headers - 24
        return body - 2 if body - 2 < 256 else body - 5

    def _do_restart(self, plain: list[str], named: dict[str, str]) -> None:
        goes_on_lsn = self.primary.crash(self.flush_lsn)
        for proposer in self.proposers.values():
            proposer.sent_lsn = Lsn(0)
            proposer.post(p.PrimaryLost("the server crashed"))
        self._flush(self.primary.end_lsn)
        self.tell(f"and has gone on at {goes_on_lsn}")
        for proposer in list(self.proposers.values()):
            proposer.post(p.PrimaryIdentified(proposer.identity()))

    def _do_copy(self, plain: list[str], named: dict[str, str]) -> None:
        self.primary.forget_after(lsn_of(plain[0]))
        self._flush(self.primary.end_lsn)

    # The machines

    def _do_power(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._stored(plain)
        _, wal = node.disks
        wal.operations_left = int(named["after"])

    def _do_start(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._stored(plain)
        if node.is_up and "process" in plain:
            node.die("was killed")
        elif node.is_up:
            node.lose_power()
        node.start()

    def _do_space(self, plain: list[str], named: dict[str, str]) -> None:
        _, wal = self._stored(plain).disks
        wal.capacity_bytes = int(plain[1], 0)

    def _do_fail(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._stored(plain)
        _, wal = node.disks
        wal.failing_syncs.add(node.driver.store.name_of(node.acceptor.write_lsn))

    def _do_damage(self, plain: list[str], named: dict[str, str]) -> None:
        node, lsn = self._stored(plain), lsn_of(plain[1])
        _, wal = node.disks
        node.is_spoilt = True
        name, offset = node.driver.store.name_of(lsn), lsn % SEGMENT_BYTES
        wal.damage(name, offset, bytes([wal.read_at(name, offset, 1)[0] ^ 0xFF]))

    def _do_retain(self, plain: list[str], named: dict[str, str]) -> None:
        self._stored(plain).retain()

    def _stored(self, plain: list[str]) -> StoredSafekeeper:
        node = self.safekeepers[int(plain[0]) - 1]
        assert isinstance(node, StoredSafekeeper), f"{node=}"
        return node

    def _ends(self) -> str:
        lines = []
        for number in range(1, len(self.safekeepers) + 1):
            node = self._stored([str(number)])
            lines.append(f"sk{number} {self._end(node)}" if node.is_up else f"sk{number} is off")
        return "\n".join(lines)

    def _end(self, node: StoredSafekeeper) -> str:
        acceptor, store = node.acceptor, node.driver.store
        try:
            record_lsn = store.record_end(acceptor.flush_lsn).end_lsn
        except CorruptWal as error:
            return f"DAMAGED: {error}"
        terms = ",".join(shown(e) for e in cut(acceptor.durable.history, acceptor.flush_lsn)[1:])
        wal = node.durable_wal()
        ours = self.primary.read(CREATION_LSN, min(acceptor.flush_lsn, self.flush_lsn))
        same = "same bytes" if wal == ours else "OTHER BYTES"
        facts = f"flush={acceptor.flush_lsn} record={record_lsn} commit={acceptor.commit_lsn}"
        return f"{facts} history={terms} {same}"
