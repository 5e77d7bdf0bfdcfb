"""The restart of a daemon that dies, after a pause that doubles while it keeps dying. Shell.

systemd's Restart=always with RestartSteps= does the same for an installed walkeeper.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

from walkeeper_common.errors import Refused
from walkeeper_lab.local.child_process import ChildProcess, shown_exit

PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 30.0
# A daemon that has run for this time did not die of the way in which it was started.
STEADY_S = 60.0


async def keep_running(child: ChildProcess, say: Callable[[str], None]) -> None:
    """Restart the child each time that it dies, until the task is cancelled.

    The caller has started the child. `say` gets a line for each death and each restart.
    """
    loop, pause_s = asyncio.get_running_loop(), PAUSE_MIN_S
    while True:
        started_s = loop.time()
        code = await child.ended()
        if loop.time() - started_s >= STEADY_S:
            pause_s = PAUSE_MIN_S
        why = "" if code < 0 else f": {child.last_words()}"
        say(f"{child.name} {shown_exit(code)}{why}; starting it again in {pause_s:g} s")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        try:
            await child.launch()
            say(f"started again: {await child.ready()}")
        except Refused:
            continue  # it has ended; the next turn of the loop shows its last words
        except (OSError, subprocess.SubprocessError) as error:
            say(f"{child.name} could not be started: {error}")  # no memory, no space for its log
