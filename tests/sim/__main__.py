"""The deterministic simulator of the shipping code.

    python -m tests.sim --seed 7                     one run, one line an event
    python -m tests.sim --seeds 10000 --minutes 5    a search; --jobs 2 in two processes

A line: simulated milliseconds, who, what. Who:

    skN     a safekeeper          pN      a proposer process, a new number each time it is started
    pgN     a primary             pgR     the one that was restored from the log in the end
    op      an operator who has a member replaced (--replace)
    ----    the world

What, beside what the code notes for its operator:

    boot, START         a new life              KILL      the process is killed
    CRASH               the power is cut: what was not synced may be lost, in any part
    STOP                a clean stop of a safekeeper; of a proposer, with the reason
    LOST                a safekeeper's disk, and with it its promises: it may not vote any more
    disk …, clock …     a disk that is full or stalls, a sync that fails, heartbeats that burst
    partition           the directions that are cut; held back: they are opened soon
    clone               another server with the same past, which goes on on its own
    plot                targeted trouble begins (plots.py); random faults go on beside it
    heal                the end of the safety phase: from here on everything must move on

The first line has the seed's options. Same seed, same trace, in every process.

Exit codes: 0 nothing found, 1 the code broke, 2 lost or forked WAL or a broken promise (the oracle
is named first), 3 no progress after healing.
"""

from __future__ import annotations

import sys
from typing import cast

from tests.sim.command_line import RunStory, main
from tests.sim.search import ASKED, run

if __name__ == "__main__":
    sys.exit(main("tests.sim", __doc__, cast(RunStory, run), ASKED))
