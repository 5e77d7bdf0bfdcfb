"""R23 for `walkeeper restore`: the server in the working directory proves its ancestry. A shell.

    prove(where, key, name=, wait_s=)       before the first file of a server's start

Contract: `prove` raises Refused for another branch, and the exit code 126 ends the server's start.
While the answer is not known, it asks again, as for a file. A server may have no WAL that the log
still keeps. Such a server goes on without a proof, because it cannot replay WAL of the log next.
The next request checks it again. An archive without safekeepers does not grow, so `prove` asks it
only once.
"""

from __future__ import annotations

from walkeeper_common.ancestry.ancestry_facts import AnotherBranch, SameBranch, Unknown
from walkeeper_common.errors import Refused
from walkeeper_restore import verdict as restoring
from walkeeper_restore.guard import say
from walkeeper_restore.repeated_requests import until_known
from walkeeper_restore.standby_check import proof
from walkeeper_restore.standby_check.checking import LogPlace, check, explained
from walkeeper_restore.standby_check.data_directory import LocalFiles

PROVEN, UNPROVEN = "proven", "unproven"


def prove(where: LogPlace, key: str, *, name: str, wait_s: float) -> None:
    """Block until the answer is known; return if this server may get files of the log.

    Raise Refused if the server is on another branch.
    """

    def ask() -> str | restoring.Unknown:
        verdict = check(LocalFiles("."), where).verdict
        text = explained(verdict, where.cluster)
        match verdict:
            case SameBranch(_, ahead_bytes):
                if ahead_bytes:
                    say(text)
                proof.remember(key)
                return PROVEN
            case AnotherBranch():
                raise Refused(text)
            case Unknown(_, out_of_reach) if out_of_reach or not where.may_grow:
                say(text)
                return UNPROVEN
            case Unknown():
                return restoring.Unknown(text)

    until_known(name, wait_s, ask)
