"""R5 to R7: where a term starts, where logs part, and the one cut that is made there."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
HISTORY = COMMON + "history.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
WAL_STORE = SAFEKEEPER + "storage/wal_store.py"

STARTS_AT_C = Edit(LEADERSHIP, "start_lsn=donor.record_lsn,", "start_lsn=donor.flush_lsn,")

ELECTING = (
    Mutant(
        "term-starts-at-c",
        "R5",
        "a term starts at the donor's record end",
        (STARTS_AT_C,),
    ),
    Mutant(
        "nothing-of-the-acceptors-end",
        "R6",
        "logs part at the latest where the common term ends in the acceptor's history",
        (
            Edit(
                HISTORY,
                "min(_end(proposer, common, LSN_MAX), _end(acceptor, common, flush_lsn), "
                "flush_lsn)",
                "min(_end(proposer, common, LSN_MAX), flush_lsn)",
            ),
        ),
        worlds=("four-terms",),
    ),
    Mutant(
        "nothing-of-the-proposers-end",
        "R6",
        "logs part at the latest where the common term ends in the proposer's history",
        (
            Edit(
                HISTORY,
                "min(_end(proposer, common, LSN_MAX), _end(acceptor, common, flush_lsn), "
                "flush_lsn)",
                "min(_end(acceptor, common, flush_lsn), flush_lsn)",
            ),
        ),
    ),
    Mutant(
        "folded-past-what-all-have",
        "R6",
        "a history is folded only as far as the election's donor knows that all members have it",
        (
            Edit(
                LEADERSHIP,
                "        reached_lsn = min(donor.restart_lsn, donor.record_lsn)",
                "        reached_lsn = donor.record_lsn",
            ),
        ),
    ),
    Mutant(
        "folded-inside-a-term",
        "R6",
        "a history is folded up to where a term starts: half a record behind it may be cut",
        (
            Edit(
                HISTORY,
                "    return max(starts, default=ZERO_LSN)",
                "    return restart_lsn",
            ),
        ),
    ),
    Mutant(
        "one-of-two-is-folded",
        "R6",
        "logs part where they part with both histories folded alike",
        (
            Edit(
                HISTORY,
                "    proposer, acceptor = folded(proposer, folded_lsn), "
                "folded(acceptor, folded_lsn)\n",
            ),
        ),
    ),
    Mutant(
        "point-of-divergence-is-believed",
        "R6",
        "the acceptor computes the point of divergence as well",
        (
            Edit(
                ACCEPTOR,
                "        if start != elected.start_lsn:",
                "        start = elected.start_lsn\n        if False:",
            ),
        ),
    ),
    Mutant(
        "election-does-not-fence",
        "R7",
        "ProposerElected fences every other connection",
        (
            Edit(
                ACCEPTOR,
                "        # Fenced already now: with an appender at work the log might never be "
                "drained.\n        self.appender = None\n",
            ),
            Edit(
                ACCEPTOR,
                "        effects = self._promise(ask.ballot)\n        self.appender = None\n",
                "        effects = self._promise(ask.ballot)\n",
            ),
            Edit(
                ACCEPTOR,
                "        self.appender, self.elected, self.voted_lsn = None, False, None\n",
                "        self.elected, self.voted_lsn = False, None\n",
            ),
            Edit(
                ACCEPTOR,
                "        if connection != self.appender or append.ballot != self.durable.ballot:",
                "        if self.appender is None:",
            ),
        ),
    ),
    Mutant(
        "nothing-is-cut",
        "seed flaw 3",
        "what a leader's log does not have is truncated; it is overwritten in place",
        (
            Edit(
                ACCEPTOR,
                "            effects += [Persist(self.durable), TruncateWal(start)]",
                "            effects += []",
            ),
        ),
    ),
    Mutant(
        "cut-without-a-mark",
        "R7",
        "a cut is marked before it begins",
        (
            Edit(
                ACCEPTOR,
                "            effects += [Persist(self.durable), TruncateWal(start)]",
                "            effects += [TruncateWal(start)]",
            ),
        ),
    ),
    Mutant(
        "history-before-the-cut",
        "R7",
        "the history is persisted when the cut is finished, not before",
        (
            Edit(
                ACCEPTOR,
                "            self.durable = replace(self.durable, truncating_to=start)\n"
                "            effects += [Persist(self.durable), TruncateWal(start)]\n",
                "            late = TruncateWal(start)\n",
            ),
            Edit(
                ACCEPTOR,
                "        effects.append(Persist(self.durable))\n"
                "        self.appender, self.elected",
                "        effects.append(Persist(self.durable))\n"
                '        if "late" in locals():\n            effects.append(late)\n'
                "        self.appender, self.elected",
            ),
        ),
    ),
    Mutant(
        "commit-stands-behind-the-cut",
        "R7",
        "a cut below commit_lsn lowers it",
        (
            Edit(
                ACCEPTOR,
                "        self.commit_lsn = self.told_commit_lsn = min(self.commit_lsn, start)\n",
                "        self.told_commit_lsn = self.commit_lsn\n",
            ),
            Edit(
                ACCEPTOR,
                "            commit_lsn=min(self.durable.commit_lsn, start),\n",
                "            commit_lsn=self.durable.commit_lsn,\n",
            ),
        ),
    ),
    Mutant(
        "readers-stay-behind-the-cut",
        "R7, R13",
        "a cut below commit_lsn ends the readers that were sent more",
        (
            Edit(
                ACCEPTOR,
                "                effects.append(EndReaders(start))",
                "                pass",
            ),
        ),
        turns_red="tests/test_scenarios.py::"
        "test_scenario[committed_half_record_may_be_cut_but_ends_readers]",
    ),
    Mutant(
        "nothing-guards-commits",
        "R7",
        "no cut below the record end at the acceptor's own commit_lsn",
        (
            Edit(
                ACCEPTOR,
                "        if start != elected.start_lsn:",
                "        start = elected.start_lsn\n        if False:",
            ),
            Edit(ACCEPTOR, "            if start < committed_record:", "            if False:"),
        ),
    ),
    Mutant(
        "cut-leaves-old-bytes",
        "R7",
        "what is cut off is zeroed to the segment's end",
        (Edit(WAL_STORE, "            self.zero_from(to_lsn)\n", "            pass\n"),),
    ),
)
