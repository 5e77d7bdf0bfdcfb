"""The deterministic simulator of the shipping code.

    python -m tests.proof.sim --seed 7                     one run, one line an event
    python -m tests.proof.sim --seeds 10000 --minutes 5    a search; --jobs 2 in two processes

A line has the simulated milliseconds, an actor and an event. The actors:

    skN     a safekeeper          pN      a proposer process, a new number each time it is started
    pgN     a primary             pgR     the one that was restored from the log in the end
    op      an operator, or a proposer that repairs; it changes the members (--replace)
    ----    the world

The events, beside those that the code notes for its operator:

    boot, START         a new life              KILL      the process is killed
    CRASH               the power is cut: any part of the bytes without a sync may be lost
    STOP                a clean stop of a safekeeper; of a proposer, with the reason
    LOST                a safekeeper's disk, and with it its promises: it may not vote any more
    disk …, clock …     a disk that is full or stalls, a sync that fails, heartbeats that burst
    partition           some directions are cut; "held back": they are mended soon
    clone               another server with the same past, which goes on by itself
    plot                targeted trouble begins (plots.py); random faults go on beside it
    heal                the end of the safety phase: from here on everything must move on

The first line has the seed's options. Same seed, same trace, in every process.

Exit codes: 0 for a clean run, 1 if the code broke, 3 for no progress after healing. Exit code 2
means lost or forked WAL or a broken promise; the output names the oracle first.
"""

from __future__ import annotations

import sys
from typing import cast

from tests.proof.sim.command_line import RunStory, main
from tests.proof.sim.search import ASKED, run

if __name__ == "__main__":
    sys.exit(main("tests.proof.sim", __doc__, cast(RunStory, run), ASKED))
