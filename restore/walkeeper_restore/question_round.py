"""One question to all safekeepers at once. A shell.

Each safekeeper has a thread of its own, so that a silent one costs no time if the others suffice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Unreachable, WalkeeperError
from walkeeper_common.shell.safekeeper_links.committed_wal import Rejected, Safekeeper
from walkeeper_common.wire.messages import AcceptorGreeting, RejectCode
from walkeeper_restore.verdict import Misconfigured, Unknown, Verdict, configuration_of

ROUND_TIMEOUT_S = 5.0
WRONG = (RejectCode.WRONG_LOG, RejectCode.UNKNOWN_LOG)
T = TypeVar("T")


class Round:
    """The answers of one round as they come in, by the safekeeper's index in `addresses`."""

    def __init__(self, addresses: Sequence[Address], cluster: str, system_id: int | None) -> None:
        """Take the server's system identifier, or None if there is no server."""
        self.greetings: dict[int, AcceptorGreeting] = {}
        self.connections: dict[int, Safekeeper] = {}
        self.errors: dict[int, WalkeeperError] = {}
        self._addresses, self._cluster, self._system_id = addresses, cluster, system_id

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def greeted(self) -> Iterator[None]:
        """Send a greeting to all safekeepers, and yield after each valid answer.

        Raise Misconfigured if the log is another system's, or if no safekeeper knows it.
        """

        def greet(address: Address) -> tuple[Safekeeper, AcceptorGreeting]:
            connection = Safekeeper(address, ROUND_TIMEOUT_S)
            return connection, connection.greet(self._cluster)

        for place, answer in asked_at_once(self._addresses, greet):
            if isinstance(answer, WalkeeperError):
                self.errors[place] = answer
                self._check_cluster()
                continue
            self.connections[place], self.greetings[place] = answer
            configuration = configuration_of(self.greetings)
            ours = self._system_id
            if configuration is not None and ours not in (None, configuration.system_id):
                raise Misconfigured(
                    f"the log belongs to the PostgreSQL cluster with system identifier "
                    f"{configuration.system_id}, this server has {ours}: check --safekeepers "
                    "and --cluster"
                )
            yield

    def _check_cluster(self) -> None:
        """Raise Misconfigured if all safekeepers lack this log, since waiting will not help."""
        wrong = [e for e in self.errors.values() if isinstance(e, Rejected) and e.code in WRONG]
        if len(wrong) == len(self._addresses):
            raise Misconfigured(str(wrong[0]))

    def with_errors(self, verdict: Verdict) -> Unknown:
        """Return an Unknown verdict with the errors of this round added to its text."""
        assert isinstance(verdict, Unknown), f"{verdict=}"
        texts = [verdict.text, *(str(error) for error in self.errors.values())]
        return Unknown("; ".join(texts), verdict.reach_lsn)


def asked_at_once(
    addresses: Sequence[Address], ask: Callable[[Address], T]
) -> Iterator[tuple[int, T | WalkeeperError]]:
    """Yield (index in `addresses`, answer or error) as the answers come, until time is up."""
    answers: SimpleQueue[tuple[int, T | WalkeeperError]] = SimpleQueue()

    def run(place: int, address: Address) -> None:
        try:
            answers.put((place, ask(address)))
        except WalkeeperError as error:
            answers.put((place, error))
        except Exception as error:
            answers.put((place, Unreachable(f"{shown_address(address)}: {error!r}")))

    for place, address in enumerate(addresses):
        threading.Thread(target=run, args=(place, address), daemon=True).start()
    deadline_s = time.monotonic() + 2 * ROUND_TIMEOUT_S
    for _ in addresses:
        try:
            yield answers.get(timeout=max(deadline_s - time.monotonic(), 0.01))
        except Empty:
            return
