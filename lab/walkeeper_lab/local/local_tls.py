"""The TLS files of a cluster on one machine, as `up` and `demo` use them. Pure.

The caller makes them with a TlsMaker, since this package may not import `walkeeper certs`. Without
a maker, no connection uses TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LocalTls:
    """The paths of the files, by owner; safekeepers by id."""

    safekeepers: Mapping[int, str]
    proposer: str
    admin: str
    replica: str

    def of_safekeeper(self, number: int) -> Sequence[str]:
        """Return the options of a safekeeper, which admits no peer without a certificate."""
        return ("--tls", self.safekeepers[number], "--require-tls")

    def of_proposer(self) -> Sequence[str]:
        """Return the options of a proposer."""
        return ("--tls", self.proposer)


# It makes the files that are missing in this directory, and renews those that are due.
TlsMaker: TypeAlias = Callable[[Path], LocalTls]
