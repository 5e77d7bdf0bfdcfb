"""R1 to R4: votes. And the epochs of the seed, which two proposers could share."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
ANSWERS = SAFEKEEPER + "consensus/answers.py"
CONSENSUS = PROPOSER + "consensus/proposer.py"
HISTORY = COMMON + "history.py"

VOTING = (
    Mutant(
        "vote-not-durable",
        "R1",
        "a promise is made durable before it is told",
        (
            Edit(
                ACCEPTOR,
                "        self.term_start_lsn = LSN_MAX\n        return [Persist(self.durable)]",
                "        self.term_start_lsn = LSN_MAX\n        return []",
            ),
        ),
    ),
    Mutant(
        "vote-for-a-smaller-ballot",
        "R1",
        "no vote for a ballot smaller than the promised one",
        (
            Edit(ACCEPTOR, "        if ask.ballot < self.durable.ballot:", "        if False:"),
            Edit(
                ACCEPTOR,
                '        assert ballot >= self.durable.ballot, f"{ballot=} '
                '{self.durable.ballot=}"\n',
            ),
        ),
    ),
    Mutant(
        "equal-ballot-refused",
        "R1",
        "the same proposer may ask again with its ballot",
        (
            Edit(
                ACCEPTOR,
                "        if ask.ballot < self.durable.ballot:",
                "        if ask.ballot <= self.durable.ballot:",
            ),
        ),
    ),
    Mutant(
        "vote-before-the-flush",
        "R2",
        "a vote waits until everything received is flushed",
        (
            Edit(
                ACCEPTOR,
                "        if self.flush_lsn < self.write_lsn:\n            return None\n"
                "        record_lsn = self._known",
                "        record_lsn = self._known",
            ),
            Edit(
                ACCEPTOR,
                "            if self.flush_lsn < self.write_lsn:\n                return []\n"
                "            at = self.flush",
                "            at = self.flush",
            ),
        ),
    ),
    Mutant(
        "vote-does-not-fence",
        "R2, R7",
        "who votes hears no older connection any more",
        (
            Edit(
                ACCEPTOR,
                "        self.appender, self.elected, self.voted_lsn = None, False, None\n",
                "        self.elected, self.voted_lsn = False, None\n",
            ),
            Edit(
                ACCEPTOR,
                "        effects = self._promise(ask.ballot)\n        self.appender = None\n",
                "        effects = self._promise(ask.ballot)\n",
            ),
            Edit(
                ACCEPTOR,
                "connection != self.appender or append.ballot != self.durable.ballot:",
                "connection != self.appender:",
            ),
        ),
    ),
    Mutant(
        "log-ends-as-greeted",
        "R2",
        "the end of the log travels in the vote, not in the greeting",
        (
            Edit(
                CONSENSUS,
                "        member.vote = vote\n",
                "        told = member.greeting\n"
                "        assert told is not None\n"
                "        from dataclasses import replace\n\n"
                "        vote = replace(vote, flush_lsn=told.flush_lsn, history=told.history,\n"
                "                       record_lsn=told.record_lsn)\n"
                "        member.vote = vote\n",
            ),
        ),
    ),
    Mutant(
        "history-runs-past-the-wal",
        "R3",
        "the history in a vote is cut to flush_lsn",
        (
            Edit(
                ANSWERS,
                "history=cut(durable.history, acceptor.flush_lsn)",
                "history=durable.history",
            ),
        ),
    ),
    Mutant(
        "donor-is-the-longest",
        "R4",
        "the donor is chosen by last log ballot first",
        (
            Edit(
                CONSENSUS,
                "key=lambda v: (v[0].history[-1].ballot, v[0].flush_lsn)",
                "key=lambda v: v[0].flush_lsn",
            ),
        ),
    ),
    Mutant(
        "donor-of-any-length",
        "R4",
        "among equal last log ballots the longest log is the donor",
        (
            Edit(
                CONSENSUS,
                "key=lambda v: (v[0].history[-1].ballot, v[0].flush_lsn)",
                "key=lambda v: (v[0].history[-1].ballot, -v[0].flush_lsn)",
            ),
        ),
    ),
    Mutant(
        "two-proposers-one-epoch",
        "seed flaw 2",
        "a ballot is a pair that no two proposers share",
        (
            Edit(
                HISTORY,
                "    term: int\n    proposer_id: bytes\n",
                "    term: int\n    proposer_id: bytes\n\n"
                "    def __hash__(self): return hash(self.term)\n"
                "    def __eq__(self, other): return self.term == other.term\n"
                "    def __ne__(self, other): return self.term != other.term\n"
                "    def __lt__(self, other): return self.term < other.term\n"
                "    def __le__(self, other): return self.term <= other.term\n"
                "    def __gt__(self, other): return self.term > other.term\n"
                "    def __ge__(self, other): return self.term >= other.term\n",
            ),
        ),
    ),
)
