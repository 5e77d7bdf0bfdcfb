"""The proposer daemon: one proposer's life after the other, until one of them ends for good."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Sequence

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Deposed, LogClosed, Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.quorum import LogKind
from walkeeper_common.shell.log_lines.operator_log import log_note
from walkeeper_common.shell.process.daemon_process import announce_ready, run_daemon
from walkeeper_common.wire.consumer_slots import ConsumerSlots, TablesQuery
from walkeeper_fastpath.ports import Commits
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.consensus.admission import Waivers
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.primary_check import PrimaryCheck
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Event, Outcome, Received, Stop, Tick
from walkeeper_proposer.linked_addresses import LinkedAddresses
from walkeeper_proposer.links import SafekeeperLinks
from walkeeper_proposer.logical.logical_check import LogicalEnd
from walkeeper_proposer.postgres.commit_times import new_commit_times
from walkeeper_proposer.postgres.logical_primary import LogicalPrimary, Spooling
from walkeeper_proposer.postgres.primary import Primary
from walkeeper_proposer.postgres.primary_retention import retention_slot
from walkeeper_proposer.postgres.promotion_wait import wait_promoted
from walkeeper_proposer.postgres.sync_state import SyncState
from walkeeper_proposer.proposer_driver import ANNOUNCE_S, Driver
from walkeeper_proposer.proposer_settings import ProposerSettings
from walkeeper_proposer.repairs import Repairs
from walkeeper_proposer.reporting import PrimaryReporter
from walkeeper_proposer.slot_sharing import SlotSharing

logger = logging.getLogger("walkeeper.proposer")


HEARTBEAT_S = 1.0
NEW_ELECTION_PAUSE_S = (0.1, 1.0)  # by chance, since two candidates may be rivals


def run(settings: ProposerSettings) -> int:
    """Run the daemon; return the exit code."""
    return run_daemon(
        lambda: _main(settings), log_level=settings.log_level, log_json=settings.log_json
    )


async def _main(settings: ProposerSettings) -> int:
    is_announced = False

    def tell(what: str) -> None:
        nonlocal is_announced
        if not is_announced:
            is_announced = True
            name = f"proposer {settings.application_name} for cluster {settings.cluster}"
            announce_ready(f"{name}, {what}")

    def on_streaming(start_lsn: Lsn) -> None:
        tell(f"streaming from {start_lsn}")

    linked = LinkedAddresses(settings.safekeepers)
    commits = new_commit_times()
    life = _Life(settings, linked.all, on_streaming, commits, linked)
    async with asyncio.TaskGroup() as group:
        sync_state = SyncState(settings.dsn, settings.application_name)
        repairs = Repairs(
            settings.cluster, lambda: life.core, lambda: linked.all, settings.repair_grace_s
        )
        reporter = PrimaryReporter(
            settings.cluster, lambda: life.core, lambda: linked.all, sync_state, repairs.shown
        )
        group.create_task(repairs.run(), name="repairs")
        if not settings.publications:
            sharing = SlotSharing(settings.cluster, lambda: life.core, lambda: linked.all)
            group.create_task(sharing.run(), name="slots")
        group.create_task(sync_state.watch(), name="sync_state")
        group.create_task(reporter.run(), name="reports")
        group.create_task(reporter.watch(), name="incidents")
        if settings.http is not None:
            facts = (sync_state, commits, repairs)
            serving = _serve_http(settings, lambda: life, lambda: linked.all, *facts)
            group.create_task(serving, name="http")
        while True:
            if settings.follow:
                await wait_promoted(
                    settings.dsn,
                    settings.application_name,
                    retention=None if settings.publications else retention_slot(settings.slot),
                    on_waiting=lambda: tell("waiting for the promotion of its server"),
                )
            stop = await life.run()
            _refuse_or_go_on(stop)
            if not life.core.gives_way_to_new_members:  # commits wait for the election
                await asyncio.sleep(random.uniform(*NEW_ELECTION_PAUSE_S))
            for text in linked.follow(life.core.configuration):
                logger.warning("%s", text)
            life = _Life(settings, linked.all, on_streaming, commits, linked)


def _refuse_or_go_on(stop: Stop) -> None:
    """Raise Deposed, LogClosed or Refused, unless a new proposer, with a new id, is to try."""
    match stop.outcome:
        case Outcome.NEW_ELECTION:
            logger.warning("a new election is needed: %s", stop.text)
        case Outcome.DEPOSED:
            raise Deposed(stop.text)
        case Outcome.CLOSED:
            raise LogClosed(stop.text)
        case _:
            raise Refused(stop.text)


async def _serve_http(
    settings: ProposerSettings,
    life: Callable[[], _Life],
    addresses: Callable[[], Sequence[Address]],
    sync_state: SyncState,
    commits: Commits,
    repairs: Repairs,
) -> None:
    from walkeeper_common.shell.http.http_endpoints import serve_http
    from walkeeper_proposer.proposer_monitoring import endpoints

    assert settings.http is not None
    shown = endpoints(
        settings,
        lambda: life().core,
        addresses,
        lambda: life().primary.spooled_bytes,
        sync_state,
        commits,
        repairs,
    )
    await serve_http(settings.http, shown)


def _primary(
    settings: ProposerSettings, end: LogicalEnd, on_streaming: Callable[[Lsn], None]
) -> Primary:
    if settings.publications:
        return LogicalPrimary(
            settings.dsn,
            settings.application_name,
            settings.slot,
            publications=settings.publications,
            messages=settings.messages,
            spooling=Spooling(settings.spool_bytes_max, settings.spool_directory),
            end=end,
            on_streaming=on_streaming,
        )
    return Primary(
        settings.dsn,
        settings.application_name,
        settings.slot,
        apply_quorum=settings.apply_quorum,
        on_streaming=on_streaming,
    )


class _Stopped(Exception):
    """Ends the task group of a life."""


class _Life:
    """One Proposer with a fresh id, its links and its primary; the driver's Surroundings."""

    def __init__(
        self,
        settings: ProposerSettings,
        addresses: tuple[Address, ...],
        on_streaming: Callable[[Lsn], None],
        commits: Commits | None = None,
        linked: LinkedAddresses | None = None,
    ) -> None:
        linked = linked or LinkedAddresses(addresses)
        end = LogicalEnd()
        logical = bool(settings.publications)
        campaign = Campaign(
            cluster=settings.cluster,
            proposer_id=os.urandom(16),
            links=len(addresses),
            addresses=frozenset(map(shown_address, addresses)),
            linked=linked.members,
            linked_generation=linked.generation,
            application_name=settings.application_name,
            waivers=Waivers(resume=settings.resume, unsafe_settings=settings.unsafe_settings),
            take_over=settings.take_over,
            kind=LogKind.LOGICAL if logical else LogKind.PHYSICAL,
            examine=end.examine if logical else PrimaryCheck,
            writes_nonces=not logical,
        )
        self._addresses = addresses
        self._links = SafekeeperLinks(addresses)
        self.primary = _primary(settings, end, on_streaming)
        self.primary.commits = commits or self.primary.commits
        self.core = Proposer(campaign)
        self._driver = Driver(
            self.core,
            links=self._links,
            primary=self.primary,
            around=self,
            announce_s=ANNOUNCE_S if settings.apply_quorum else 0.0,
            fast=stream_path(),
        )
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()

    async def run(self) -> Stop:
        """Run until the core stops; raise the errors of the primary's shell."""
        try:
            async with asyncio.TaskGroup() as group:
                links = self._links.run(self._on_link, self._driver.acknowledge_at_once)
                group.create_task(links, name="links")
                group.create_task(self.primary.run(self._driver.post), name="primary")
                group.create_task(self._tick(), name="heartbeat")
                await self._stop
                raise _Stopped
        except* _Stopped:
            pass
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # SIGTERM came while the group was ending, which swallows it (CPython 3.11 and 3.12).
            raise asyncio.CancelledError
        return self._stop.result()

    def _on_link(self, event: Event) -> None:
        """Pass an event to the core, or what concerns consumers to the logical primary."""
        message = event.message if isinstance(event, Received) else None
        if not isinstance(message, ConsumerSlots | TablesQuery):
            self._driver.post(event)
        elif isinstance(self.primary, LogicalPrimary):
            self.primary.on_consumers(message)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._driver.post(Tick(self._links.receiving()))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, what)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def note(self, text: str, facts: Sequence[tuple[str, object]], severity: Severity, /) -> None:
        shown = [self._address_of(fact) for fact in facts]
        log_note(logger, text, shown, severity)

    def _address_of(self, fact: tuple[str, object]) -> tuple[str, object]:
        """Return the fact, with the address of a link for its number."""
        name, value = fact
        if name != "link" or not isinstance(value, int):
            return fact
        return "address", shown_address(self._addresses[value])

    def stopped(self, stop: Stop) -> None:
        if not self._stop.done():  # SIGTERM has cancelled it, and somebody deposes us meanwhile
            self._stop.set_result(stop)
