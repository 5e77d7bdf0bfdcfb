"""R22: what tells a primary from a clone is kept until a quorum has what tells next."""

from __future__ import annotations

from tests.proof.mutants.mutant import BULK, SEARCHED, Edit, Mutant

TESTS = "tests/proposer/test_telling_record.py::test_"
NONCE_TESTS = "tests/common/test_nonce_message.py::test_"
SCENARIO = "tests/consensus/test_scenarios.py::test_scenario[retention_keeps_what_tells]"

STANDBY_TESTS = "tests/proposer/test_standby_retention.py::test_"
NO_SQL = "the simulated standbys have no SQL and no slots"

TELLING = (
    Mutant(
        "safekeepers-remove-what-tells",
        "R22",
        "restart_lsn stays at the last nonce that a quorum knows as committed",
        (Edit("Leader.advance_commit", "self.restart_lsn_max", "LSN_MAX"),),
        turns_red=TESTS + "safekeepers_may_not_remove_the_last_nonce",
        searched_by=(BULK,),
        why_named=SEARCHED,
    ),
    Mutant(
        "flushed-nonce-tells",
        "R22",
        "a nonce counts when a quorum durably knows it as committed, not when a quorum has it",
        (Edit("Leader._retain", "m.durable_commit_lsn", "m.flush_lsn"),),
        turns_red=SCENARIO,
        searched_by=(BULK,),
        why_named=SEARCHED,
    ),
    Mutant(
        "settle-lets-go",
        "R22",
        "a settle raises restart_lsn nowhere",
        (
            Edit(
                "Leader.__init__",
                "campaign.writes_nonces or campaign.purpose is not Purpose.ATTACH",
                "campaign.writes_nonces",
            ),
        ),
        turns_red=TESTS + "a_settle_lets_go_of_nothing",
        searched_by=(BULK,),
        why_named=SEARCHED,
    ),
    Mutant(
        "nonce-across-a-page",
        "R22",
        "a nonce that a page's end may cut is no telling record",
        (Edit("nonce_page", "page_lsn if is_whole else None", "page_lsn"),),
        turns_red=NONCE_TESTS + "a_page_is_named_only_if_it_holds_the_record_whole",
        searched_by=(BULK,),
        why_named=SEARCHED,
    ),
    Mutant(
        "any-prefix-is-a-nonce",
        "R22",
        "only a message with our prefix is a nonce",
        (
            Edit(
                "is_nonce_message",
                "bytes(data[_MESSAGE.size : _MESSAGE.size + len(_PREFIX)]) == _PREFIX",
                "True",
            ),
        ),
        turns_red=NONCE_TESTS + "a_message_that_a_load_may_write_everywhere_tells_nothing",
        why_named="the simulated servers write no messages but nonces",
    ),
    Mutant(
        "a-young-checkpoint-tells",
        "R22",
        "a standby's checkpoint counts when safekeepers durably know it as committed",
        (Edit("Restartpoints.look", "now_s + SURE_S", "now_s"),),
        turns_red=STANDBY_TESTS + "a_checkpoint_counts_when_safekeepers_know_it_as_committed",
        why_named=NO_SQL,
    ),
    Mutant(
        "a-checkpoint-across-a-page",
        "R22",
        "a standby's checkpoint that a page's end cuts is no telling record",
        (
            Edit(
                "Restartpoints.look",
                "is_whole and len(self._awaited) < AWAITED_MAX",
                "len(self._awaited) < AWAITED_MAX",
            ),
        ),
        turns_red=STANDBY_TESTS + "a_checkpoint_that_a_page_cuts_never_counts",
        why_named=NO_SQL,
    ),
)
