"""The worlds that are explored, by name: small ones in every test, large ones by `make prove`.

All worlds share three facts: a leader's WAL starts where an election put it, every connection is in
order, and every answer may be lost. In worlds with one proposer, a new one begins when the last has
ended. That loses nothing as long as acceptors keep their promises. An acceptor then handles a
smaller ballot before any greater one. So each run has a twin in the order of its ballots. Two
proposers at once try to break these promises.
"""

from __future__ import annotations

from tests.proof.explore.bounds import Bounds

# Each within some seconds, together within a minute.
SMALL = {
    "two-proposers": Bounds(
        terms=2, campaigns=2, records=1, crashes=0, breaks=0, takes_halves=False
    ),
    "two-proposers-half-records": Bounds(
        terms=2, campaigns=2, records=1, crashes=0, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "three-terms": Bounds(
        proposers=1, terms=3, campaigns=3, records=1, crashes=1, breaks=0,
        votes_at_once=True, takes_halves=False,
    ),
    "aborted-records": Bounds(
        proposers=1, terms=2, campaigns=2, records=1, crashes=1, breaks=0,
        votes_at_once=True, aborts=True,
    ),
    "slow-disks": Bounds(
        proposers=1, terms=2, campaigns=2, records=1, crashes=1, breaks=0,
        votes_at_once=True, slow_disks=True,
    ),
    "late-connections": Bounds(
        proposers=1, terms=2, campaigns=2, records=1, crashes=0, breaks=1, lates=1,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "five-acceptors": Bounds(
        acceptors=5, ack_quorum=3, proposers=1, terms=2, campaigns=2, records=1, crashes=0,
        breaks=0, votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "members": Bounds(
        acceptors=3, newcomers=1, commands=("replace",), proposers=1, terms=1, campaigns=1,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-one-to-two": Bounds(
        acceptors=2, ack_quorum=1, newcomers=1, commands=("add",), next_ack=2, proposers=1, terms=3,
        campaigns=3, records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-one-for-another": Bounds(
        acceptors=2, ack_quorum=1, newcomers=1, commands=("replace",), proposers=1, terms=3,
        campaigns=3, records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-two-acks-to-one": Bounds(
        acceptors=2, commands=("set-ack-quorum",), next_ack=1, proposers=1, terms=2, campaigns=2,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-one-ack-to-two": Bounds(
        acceptors=2, ack_quorum=1, commands=("set-ack-quorum",), next_ack=2, proposers=1, terms=2,
        campaigns=2, records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "zones-of-two-and-two": Bounds(
        acceptors=4, ack_quorum=2, zones=("a", "a", "b", "b"), ack_zones=2, proposers=1, terms=2,
        campaigns=2, records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-no-zones-to-two": Bounds(
        acceptors=2, ack_quorum=1, zones=("a", "b"), commands=("set-ack-zones",), next_zones=2,
        proposers=1, terms=2, campaigns=2, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False, shows_commits=False,
    ),
    "members-two-zones-to-none": Bounds(
        acceptors=2, ack_quorum=1, zones=("a", "b"), ack_zones=2, commands=("set-ack-zones",),
        proposers=1, terms=2, campaigns=2, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False, shows_commits=False,
    ),
    "close-beside-a-leader": Bounds(
        terms=2, campaigns=2, closes=1, records=1, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "close-again": Bounds(
        proposers=1, terms=3, campaigns=3, closes=2, records=1, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
}  # fmt: skip

# Together under two hours on two cores; the longest first.
LARGE = {
    "two-proposers-halves": Bounds(
        terms=2, campaigns=2, records=2, crashes=0, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "two-proposers-halves-three-terms": Bounds(
        terms=3, campaigns=3, records=1, crashes=0, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "two-proposers-three-terms": Bounds(
        terms=3, campaigns=3, records=2, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "two-proposers-crashes": Bounds(
        terms=2, campaigns=2, records=2, crashes=1, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "two-proposers-crashes-halves": Bounds(
        terms=2, campaigns=2, records=1, crashes=1, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "two-proposers-losses": Bounds(
        terms=2, campaigns=2, records=1, crashes=0, breaks=1, lates=1,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "restarts-four-terms": Bounds(
        proposers=1, terms=4, campaigns=4, records=2, crashes=1, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "restarts-and-losses": Bounds(
        proposers=1, terms=3, campaigns=3, records=2, crashes=1, breaks=1,
        votes_at_once=True, shows_commits=False,
    ),
    "aborted-records-three-terms": Bounds(
        proposers=1, terms=3, campaigns=3, records=1, crashes=1, breaks=0,
        votes_at_once=True, aborts=True, shows_commits=False,
    ),
    "readers-and-marks": Bounds(
        proposers=1, terms=2, campaigns=2, records=1, crashes=1, breaks=1,
        votes_at_once=True, lazy_marks=True, slow_disks=True,
    ),
    "five-acceptors-ack-3": Bounds(
        acceptors=5, ack_quorum=3, proposers=1, terms=3, campaigns=3, records=1, crashes=0,
        breaks=0, votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "four-terms": Bounds(
        proposers=1, terms=4, campaigns=4, records=2, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "folding": Bounds(
        proposers=1, terms=3, campaigns=3, records=2, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, folds=True,
    ),
    "folding-four-terms": Bounds(
        proposers=1, terms=4, campaigns=4, records=2, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False, folds=True,
    ),
    "five-acceptors-ack-2": Bounds(
        acceptors=5, ack_quorum=2, proposers=1, terms=2, campaigns=2, records=1, crashes=1,
        breaks=0, votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "five-acceptors-ack-4": Bounds(
        acceptors=5, ack_quorum=4, proposers=2, terms=2, campaigns=2, records=1, crashes=0,
        breaks=0, votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "members-cancel": Bounds(
        acceptors=3, newcomers=1, commands=("replace", "cancel"), proposers=1, terms=1,
        campaigns=1, records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-crashes": Bounds(
        acceptors=3, newcomers=1, commands=("replace",), proposers=1, terms=1, campaigns=1,
        records=1, crashes=1, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-late": Bounds(
        acceptors=2, ack_quorum=1, newcomers=1, commands=("replace",), proposers=1, terms=4,
        campaigns=4, records=2, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        late=True,
    ),
    "members-two-terms": Bounds(
        acceptors=3, newcomers=1, commands=("replace",), proposers=1, terms=2, campaigns=2,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-three": Bounds(
        acceptors=4, newcomers=1, commands=("replace",), proposers=1, terms=1, campaigns=1,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-three-to-two-terms": Bounds(
        acceptors=3, commands=("remove",), next_ack=2, proposers=1, terms=2, campaigns=2,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-three-to-two": Bounds(
        acceptors=3, commands=("remove",), next_ack=2, proposers=1, terms=1, campaigns=1,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-two-to-three": Bounds(
        acceptors=3, newcomers=1, commands=("add",), next_ack=2, proposers=1, terms=2, campaigns=2,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-one-for-another-crashes": Bounds(
        acceptors=2, ack_quorum=1, newcomers=1, commands=("replace",), proposers=1, terms=3,
        campaigns=3, records=1, crashes=1, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-one-for-another-cancel": Bounds(
        acceptors=2, ack_quorum=1, newcomers=1, commands=("replace", "cancel"), proposers=1,
        terms=3, campaigns=3, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False, shows_commits=False,
    ),
    "zones-of-two-two-and-one": Bounds(
        acceptors=5, ack_quorum=2, zones=("a", "a", "b", "b", "c"), ack_zones=2, proposers=1,
        terms=2, campaigns=2, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False, shows_commits=False,
    ),
    "zones-two-proposers": Bounds(
        acceptors=3, ack_quorum=1, zones=("a", "a", "b"), ack_zones=2, terms=2, campaigns=2,
        records=1, crashes=0, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "zones-crashes": Bounds(
        acceptors=4, ack_quorum=2, zones=("a", "a", "b", "b"), ack_zones=2, proposers=1, terms=2,
        campaigns=2, records=1, crashes=1, breaks=0, votes_at_once=True, takes_halves=False,
        shows_commits=False,
    ),
    "members-three-no-zones-to-two": Bounds(
        acceptors=3, zones=("a", "a", "b"), commands=("set-ack-zones",), next_zones=2,
        proposers=1, terms=1, campaigns=1, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False, shows_commits=False,
    ),
    "members-ack-cancel": Bounds(
        acceptors=2, ack_quorum=1, commands=("set-ack-quorum", "cancel"), next_ack=2, proposers=1,
        terms=2, campaigns=2, records=1, crashes=1, breaks=0, votes_at_once=True,
        takes_halves=False, shows_commits=False,
    ),
    "close-halves": Bounds(
        terms=2, campaigns=2, closes=1, records=1, crashes=0, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "close-crashes": Bounds(
        proposers=1, terms=3, campaigns=3, closes=2, records=1, crashes=1, breaks=0,
        votes_at_once=True, shows_commits=False,
    ),
    "close-losses": Bounds(
        terms=2, campaigns=2, closes=1, records=1, crashes=0, breaks=1, lates=1,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
    "members-close": Bounds(
        acceptors=2, ack_quorum=1, newcomers=1, commands=("add",), next_ack=2, proposers=1, terms=3,
        campaigns=3, closes=2, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False,
    ),
    "members-close-one-ack-to-two": Bounds(
        acceptors=2, ack_quorum=1, commands=("set-ack-quorum",), next_ack=2, proposers=1, terms=3,
        campaigns=3, closes=2, records=1, crashes=0, breaks=0, votes_at_once=True,
        takes_halves=False,
    ),
    "close-three-terms": Bounds(
        terms=3, campaigns=3, closes=2, records=1, crashes=0, breaks=0,
        votes_at_once=True, takes_halves=False, shows_commits=False,
    ),
}  # fmt: skip

ALL = SMALL | LARGE
