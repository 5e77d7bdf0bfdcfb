"""Ack rules that count zones (R19, M1, M6): each clause of the two rules, and what goes by them."""

from __future__ import annotations

from tests.proof.mutants.mutant import SEARCHED, Edit, Mutant

TEST = "tests/consensus/test_pure_zones.py::test_"
SHOWN = "tests/proposer/test_repairs.py::test_"
FAST = "tests/proposer/test_fast_zones.py::test_the_zones_are_those_of_the_rules"
WORLDS = ("zones-of-two-and-two",)
ADVICE = "it loses no commit, so no oracle sees it"


def _named(name: str, rule: str, what: str, edit: Edit, test: str, why: str = SEARCHED) -> Mutant:
    return Mutant(name, rule, what, (edit,), turns_red=TEST + test, why_named=why)


ZONES = (
    Mutant(
        "acks-count-no-zones",
        "R19, R10",
        "an ack set has members of as many zones as the rule says",
        (Edit("MemberSet.commits", "len(self.zones_of(names)) >= self.ack_zones", "True"),),
        WORLDS,
        turns_red=TEST + "a_vote_quorum_is_what_no_ack_quorum_avoids",
        why_named="more votes elect then, and the register needs fewer: that loses no commit",
    ),
    Mutant(
        "commit-lsn-counts-no-zones",
        "R10, R19",
        "commit_lsn is on as many zones as the rule says",
        (Edit("MemberSet.acknowledged", "not self.ack_zones", "True"),),
        WORLDS,
    ),
    Mutant(
        "votes-of-any-zones-elect",
        "R19",
        "fewer votes than n - a + 1 elect only if they are all that are outside of z - 1 zones",
        (
            Edit(
                "MemberSet.elects",
                "not self.commits([m for m in self.members if m not in names])",
                "sum(m in names for m in self.members) >= self.voters_min",
            ),
        ),
        WORLDS,
    ),
    _named(
        "final-set-forgets-its-zones",
        "M1",
        "the zones of a target are those of the set that becomes final",
        Edit("Configuration.having", "ack_zones=present.ack_zones", "ack_zones=self.ack_zones"),
        "neighbouring_generations_meet_with_zones",
    ),
    Mutant(
        "fast-path-counts-no-zones",
        "R10, R19",
        "the compiled fast path counts the zones of each set",
        (Edit("counted_zones", "not each.ack_zones", "True"),),
        turns_red=FAST,
        why_named=SEARCHED,
    ),
    _named(
        "zone-may-stop-commits",
        "M1",
        "a rule under which the loss of one zone stops commits is refused",
        Edit("zones.refuse_zone_stop", "stops is not None", "False"),
        "a_rule_under_which_a_zone_stops_commits_needs_a_word",
        ADVICE,
    ),
    Mutant(
        "lacking-zone-is-not-named",
        "R19",
        "status names the zones that a commit lacks",
        (Edit("zones.lacking_zones", "len(known) < each.ack_zones", "False"),),
        turns_red=TEST + "the_rules_in_words",
        why_named=ADVICE,
    ),
    Mutant(
        "held-repair-floods-the-log",
        "M6",
        "the log says once an hour that a repair is held back",
        (Edit("Repairs._tell_held", "now_s - self._logged_s >= REPAIRS_S", "True"),),
        turns_red=SHOWN + "the_log_says_once_an_hour_that_a_repair_is_held_back",
        why_named=ADVICE,
    ),
    _named(
        "spare-of-any-zone-comes-first",
        "M6",
        "a repair prefers a spare in the zone that lacks one",
        Edit("Auditor._best_spare", "crowd if present.zones else 0", "0"),
        "a_repair_takes_a_spare_in_the_zone_that_lacks_one",
        ADVICE,
    ),
    _named(
        "repair-stops-commits-of-a-zone",
        "M6",
        "no spare is taken with which the loss of one zone would stop commits",
        Edit("Auditor._best_spare", "_fits(present, leaving, each)", "True"),
        "a_spare_in_a_zone_that_would_stop_commits_is_not_taken",
        ADVICE,
    ),
    _named(
        "new-disk-loses-its-zone",
        "M6",
        "a member with another disk keeps its zone, and a newcomer has the one that is named",
        Edit(
            "changing.Goal._labels",
            "{new.number: new.zone for new in self.joining if new.zone}",
            "{new.number: new.zone for new in self.joining}",
        ),
        "a_member_that_joins_has_its_zone_and_one_with_another_disk_keeps_it",
        ADVICE,
    ),
)
