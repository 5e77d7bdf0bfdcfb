"""R5 to R7: where a term starts, where logs part, and the one cut that is made there."""

from __future__ import annotations

from tests.proof.mutants.mutant import SEARCHED, Edit, Mutant

STARTS_AT_C = Edit("entry_of_term", "start_lsn=donor.record_lsn", "start_lsn=donor.flush_lsn")

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
        "logs diverge at the latest where the common term ends in the acceptor's history",
        (
            Edit(
                "divergence",
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
        "logs diverge at the latest where the common term ends in the proposer's history",
        (
            Edit(
                "divergence",
                "min(_end(proposer, common, LSN_MAX), _end(acceptor, common, flush_lsn), "
                "flush_lsn)",
                "min(_end(acceptor, common, flush_lsn), flush_lsn)",
            ),
        ),
        worlds=("four-terms",),
    ),
    Mutant(
        "folded-past-what-all-have",
        "R6",
        "a history is folded only as far as the election's donor knows that all members have it",
        (Edit("shortened", "min(donor.restart_lsn, donor.record_lsn)", "donor.record_lsn"),),
    ),
    Mutant(
        "folded-inside-a-term",
        "R6",
        "a fold ends at the start of a term, since half a record past it may be cut",
        (Edit("foldable_lsn", "max(starts, default=ZERO_LSN)", "restart_lsn"),),
    ),
    Mutant(
        "one-of-two-is-folded",
        "R6",
        "folded histories diverge where the whole ones do",
        (
            Edit(
                "divergence",
                "proposer, acceptor = folded(proposer, folded_lsn), folded(acceptor, folded_lsn)",
            ),
        ),
    ),
    Mutant(
        "folded-histories-part-late",
        "R6",
        "folded histories diverge at the end of the acceptor's term, too",
        (
            Edit(
                "divergence",
                "_end(acceptor, common, flush_lsn)",
                "flush_lsn if folded_lsn else _end(acceptor, common, flush_lsn)",
            ),
        ),
        turns_red="tests/common/test_pure_history.py"
        "::test_no_run_keeps_a_foreign_byte_or_cuts_a_committed_one",
        why_named=SEARCHED,
    ),
    Mutant(
        "point-of-divergence-is-believed",
        "R6",
        "the acceptor computes the point of divergence as well",
        (
            Edit(
                "Acceptor._answer_elected",
                "if start != elected.start_lsn:\n"
                '    text = f"the divergence point is {start}, not {elected.start_lsn}"\n'
                "    return [self._reject(connection, RejectCode.DIVERGENCE, text)]\n",
                "start = elected.start_lsn\n"
                "if False:\n"
                '    text = f"the divergence point is {start}, not {elected.start_lsn}"\n'
                "    return [self._reject(connection, RejectCode.DIVERGENCE, text)]\n",
            ),
        ),
    ),
    Mutant(
        "election-does-not-fence",
        "R7",
        "ProposerElected fences every other connection",
        (
            Edit("Acceptor.on_elected", "self.appender = None"),
            Edit("Acceptor.on_vote_request", "self.appender = None"),
            Edit(
                "Acceptor._promise",
                "self.appender, self.elected, self.voted_lsn = None, False, None",
                "self.elected, self.voted_lsn = False, None",
            ),
            Edit(
                "Acceptor.on_append",
                "connection != self.appender or append.ballot != self.durable.ballot",
                "self.appender is None",
            ),
        ),
    ),
    Mutant(
        "nothing-is-cut",
        "seed flaw 3",
        "WAL that the leader's log lacks is truncated, not overwritten in place",
        (Edit("Acceptor.become_follower", "[Persist(self.durable), TruncateWal(start)]", "[]"),),
    ),
    Mutant(
        "cut-without-a-mark",
        "R7",
        "a cut is marked before it begins",
        (
            Edit(
                "Acceptor.become_follower",
                "[Persist(self.durable), TruncateWal(start)]",
                "[TruncateWal(start)]",
            ),
        ),
    ),
    Mutant(
        "history-before-the-cut",
        "R7",
        "the history is persisted when the cut is finished, not before",
        (
            Edit(
                "Acceptor.become_follower",
                "self.durable = replace(self.durable, truncating_to=start)\n"
                "effects += [Persist(self.durable), TruncateWal(start)]\n",
                "late = TruncateWal(start)",
            ),
            Edit(
                "Acceptor.become_follower",
                "effects.append(Persist(self.durable))",
                "effects.append(Persist(self.durable))\n"
                'if "late" in locals():\n'
                "    effects.append(late)\n",
            ),
        ),
    ),
    Mutant(
        "commit-stands-behind-the-cut",
        "R7",
        "a cut below commit_lsn lowers it",
        (
            Edit(
                "Acceptor.become_follower",
                "self.commit_lsn = self.leader_commit_lsn = min(self.commit_lsn, start)",
                "self.leader_commit_lsn = self.commit_lsn",
            ),
            Edit(
                "Acceptor.become_follower",
                "min(self.durable.commit_lsn, start)",
                "self.durable.commit_lsn",
            ),
        ),
    ),
    Mutant(
        "readers-stay-behind-the-cut",
        "R7, R13",
        "a cut below commit_lsn ends the readers that were sent more",
        (Edit("Acceptor.become_follower", "effects.append(EndReaders(start))", "pass"),),
        turns_red="tests/consensus/test_scenarios.py::"
        "test_scenario[committed_half_record_may_be_cut_but_ends_readers]",
        why_named=SEARCHED,
    ),
    Mutant(
        "nothing-guards-commits",
        "R7",
        "no cut below the record end at the acceptor's own commit_lsn",
        (
            Edit(
                "Acceptor._answer_elected",
                "if start != elected.start_lsn:\n"
                '    text = f"the divergence point is {start}, not {elected.start_lsn}"\n'
                "    return [self._reject(connection, RejectCode.DIVERGENCE, text)]\n",
                "start = elected.start_lsn\n"
                "if False:\n"
                '    text = f"the divergence point is {start}, not {elected.start_lsn}"\n'
                "    return [self._reject(connection, RejectCode.DIVERGENCE, text)]\n",
            ),
            Edit("Acceptor._answer_elected", "start < committed_record", "False"),
        ),
    ),
    Mutant(
        "cut-leaves-old-bytes",
        "R7",
        "a truncation zeroes the segment to its end",
        (Edit("WalStore.truncate", "self.zero_from(to_lsn)", "pass"),),
    ),
)
