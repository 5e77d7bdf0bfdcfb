"""R1 to R4: votes. And the epochs of the seed, which two proposers could share."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

VOTING = (
    Mutant(
        "vote-not-durable",
        "R1",
        "a promise is durable before the answer",
        (Edit("Acceptor._promise", "[Persist(self.durable)]", "[]"),),
    ),
    Mutant(
        "vote-for-a-smaller-ballot",
        "R1",
        "no vote for a ballot smaller than the promised one",
        (
            Edit("Acceptor.on_vote_request", "ask.ballot < self.durable.ballot", "False"),
            Edit(
                "Acceptor._promise",
                'assert ballot >= self.durable.ballot, f"{ballot=} {self.durable.ballot=}"',
            ),
        ),
    ),
    Mutant(
        "equal-ballot-refused",
        "R1",
        "the same proposer may ask again with its ballot",
        (
            Edit(
                "Acceptor.on_vote_request",
                "ask.ballot < self.durable.ballot",
                "ask.ballot <= self.durable.ballot",
            ),
        ),
    ),
    Mutant(
        "vote-before-the-flush",
        "R2",
        "a vote waits until everything received is flushed",
        (
            Edit("Acceptor._answer_vote", "if self.flush_lsn < self.write_lsn:\n    return None\n"),
            Edit(
                "Acceptor._ask_record_end", "if self.flush_lsn < self.write_lsn:\n    return []\n"
            ),
        ),
    ),
    Mutant(
        "vote-does-not-fence",
        "R2, R7",
        "a voter takes no message of an older connection any more",
        (
            Edit(
                "Acceptor._promise",
                "self.appender, self.elected, self.voted_lsn = None, False, None",
                "self.elected, self.voted_lsn = False, None",
            ),
            Edit("Acceptor.on_vote_request", "self.appender = None"),
            Edit(
                "Acceptor.on_append",
                "connection != self.appender or append.ballot != self.durable.ballot",
                "connection != self.appender",
            ),
        ),
    ),
    Mutant(
        "log-ends-as-greeted",
        "R2",
        "the end of the log travels in the vote, not in the greeting",
        (
            Edit(
                "Candidate.on_vote",
                "member.vote = vote",
                "told = member.greeting\n"
                "assert told is not None\n"
                "from dataclasses import replace\n"
                "\n"
                "vote = replace(vote, flush_lsn=told.flush_lsn, history=told.history,\n"
                "               record_lsn=told.record_lsn)\n"
                "member.vote = vote\n",
            ),
        ),
    ),
    Mutant(
        "history-runs-past-the-wal",
        "R3",
        "the history in a vote is cut to flush_lsn",
        (Edit("refused_vote", "cut(durable.history, acceptor.flush_lsn)", "durable.history"),),
    ),
    Mutant(
        "donor-is-the-longest",
        "R4",
        "the donor is chosen by last log ballot first",
        (
            Edit(
                "donor_of",
                "(v[0].history[-1].ballot, v[0].flush_lsn)",
                "v[0].flush_lsn",
            ),
        ),
    ),
    Mutant(
        "donor-of-any-length",
        "R4",
        "among equal last log ballots the longest log is the donor",
        (Edit("donor_of", "v[0].flush_lsn", "-v[0].flush_lsn"),),
    ),
    Mutant(
        "two-proposers-one-epoch",
        "seed flaw 2",
        "a ballot is a pair that no two proposers share",
        (
            Edit(
                "Ballot",
                "proposer_id: bytes",
                "proposer_id: bytes\n"
                "\n"
                "def __hash__(self): return hash(self.term)\n"
                "def __eq__(self, other): return self.term == other.term\n"
                "def __ne__(self, other): return self.term != other.term\n"
                "def __lt__(self, other): return self.term < other.term\n"
                "def __le__(self, other): return self.term <= other.term\n"
                "def __gt__(self, other): return self.term > other.term\n"
                "def __ge__(self, other): return self.term >= other.term\n",
            ),
        ),
    ),
)
