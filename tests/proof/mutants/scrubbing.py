"""Mutants of what finds damage of a disk: the scrub, and the look before an upload."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

SCRUB = "tests/safekeeper/test_scrub.py::test_"
DIGESTS = "tests/safekeeper/test_range_digests.py::test_"
OFFLOAD = "tests/archive/test_offload.py::test_"
NO_SCRUB = "the simulated safekeepers run no scrub"

SCRUBBING = (
    Mutant(
        "damage-without-a-copy-stays",
        "scrub",
        "a flaw without a copy at hand is tried again with the next pass",
        (
            Edit(
                "Scrub.run",
                "flaw is not None and flaw != self._repaired and await self._repair(flaw)",
                "flaw is not None and self.passes == 1 and await self._repair(flaw)",
            ),
        ),
        turns_red=SCRUB + "damage_without_a_copy_is_tried_again_with_the_next_pass",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "digests-are-not-compared",
        "scrub",
        "a segment is compared with other copies although its records are sound",
        (Edit("Scrub.one_pass", "compared_lsn + store.segment_bytes <= at_lsn", "False"),),
        turns_red=SCRUB + "each_whole_segment_is_compared_with_other_copies_once",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "one-copy-condemns-another",
        "scrub",
        "a copy is wrong only if two others agree against it, and are more",
        (
            Edit(
                "range_digests.judge", "witnesses >= WITNESSES_MIN and witnesses > holders", "True"
            ),
        ),
        turns_red=DIGESTS + "ours_is_wrong_if_two_others_agree_and_are_more",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "any-copy-repairs-a-digest",
        "scrub",
        "only a copy with the digest of most others replaces a segment that they contradict",
        (Edit("Wanted.takes", "self.sha256 in (None, hashlib.sha256(copy).hexdigest())", "True"),),
        turns_red=DIGESTS + "only_a_copy_with_the_digest_of_most_repairs",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "damaged-wal-is-archived",
        "sound_wal",
        "WAL whose records are not sound gets no receipt",
        (Edit("SoundWal.read", "self._check(begin_lsn, end_lsn, readable_lsn)", "pass"),),
        turns_red=OFFLOAD + "damaged_wal_gets_no_receipt",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "condemned-wal-is-archived",
        "sound_wal",
        "WAL that the scrub found damaged gets no receipt",
        (Edit("SoundWal.read", "self._driver.is_damaged(begin_lsn, end_lsn)", "False"),),
        turns_red=OFFLOAD + "a_segment_that_the_scrub_found_damaged_gets_no_receipt",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "scrub-passes-over-damage",
        "scrub",
        "a record that its CRC does not bear out ends the pass with a flaw",
        (
            Edit(
                "record_steps.step",
                'return Step(at_lsn, f"segment {wal.name_of(at_lsn)}: {found.reason}")',
                "return Step(end_lsn)",
            ),
        ),
        turns_red=SCRUB + "one_flipped_bit_in_a_record_is_found_in_its_segment[0]",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "unfinished-entry-counts-as-damage",
        "scrub",
        "a scrub of a logical log ends at the last whole entry, not inside the one that goes on",
        (
            Edit(
                "HostedLog.whole_end",
                "call(reader, lambda: last_whole_end(store, readable_lsn))",
                "call(reader, lambda: readable_lsn)",
            ),
        ),
        turns_red=SCRUB + "a_logical_log_has_no_flaw_while_its_last_entry_goes_on",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "scrubbed-damage-is-served",
        "scrub",
        "WAL that the scrub found damaged is withheld from readers",
        (Edit("Scrub._report", "self._log.driver.damaged = damaged"),),
        turns_red=SCRUB + "damage_is_withheld_and_one_place_is_repaired_once",
        why_named=NO_SCRUB,
    ),
    Mutant(
        "scrub-repairs-for-ever",
        "scrub",
        "a place that a repair did not mend is not repaired again at once",
        (
            Edit(
                "Scrub.run",
                "flaw is not None and flaw != self._repaired and await self._repair(flaw)",
                "flaw is not None and await self._repair(flaw)",
            ),
        ),
        turns_red=SCRUB + "damage_is_withheld_and_one_place_is_repaired_once",
        why_named=NO_SCRUB,
    ),
)
