"""Repeated requests until the answer is known. A shell.

A standby repeats them without limit, and another server for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from walkeeper_common.errors import Refused
from walkeeper_restore import restored_server
from walkeeper_restore.file_placement import check_wanted
from walkeeper_restore.guard import say
from walkeeper_restore.verdict import Unknown

SAY_FIRST_S, SAY_S = 1.0, 10.0
PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
RESTART = "; if restore_command was changed meanwhile, restart this server"


def until_known(name: str, wait_s: float, ask: Callable[[], str | Unknown]) -> str:
    """Block until `ask` gives an outcome, and say in the server's log why it waits.

    Raise Refused after `wait_s`, unless the server is a standby, which waits without limit.
    """
    started_s, pause_s, is_standby = time.monotonic(), PAUSE_S, restored_server.is_standby()
    say_s = started_s + SAY_FIRST_S
    while True:
        check_wanted()
        outcome = ask()
        if isinstance(outcome, str):
            return outcome
        now_s = time.monotonic()
        if not is_standby and now_s - started_s >= wait_s:
            raise Refused(f"{name}: gave up after {wait_s:g} s: {outcome.text}")
        if now_s >= say_s:
            waited_s = now_s - started_s
            # PostgreSQL does nothing else meanwhile, so it does not see a new restore_command.
            hint = RESTART if is_standby and waited_s > SAY_S else ""
            say(f"{name}: waiting for {waited_s:.0f} s: {outcome.text}{hint}")
            say_s = now_s + SAY_S
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
