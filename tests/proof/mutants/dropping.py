"""M7: logs that an operator drops."""

from __future__ import annotations

from tests.proof.mutants.mutant import REAL_FILES, Edit, Mutant

DROPPED_TEST = "tests/safekeeper/test_dropped_logs.py::"

DROPPING = (
    Mutant(
        "dropped-log-comes-back",
        "M7",
        "a log with a tombstone is not prepared again",
        (Edit("LogCatalog._prepare", "self._dropped.tombstones.find(ask.log_uuid)", "None"),),
        turns_red=DROPPED_TEST + "test_a_dropped_log_is_not_prepared_again",
        why_named=REAL_FILES,
    ),
    Mutant(
        "half-dropped-log-is-served",
        "M7",
        "a start finishes a removal that a crash interrupted",
        (Edit("LogCatalog._open_one", "known.find(durable.log_uuid)", "None"),),
        turns_red=DROPPED_TEST + "test_a_start_finishes_a_removal[buried]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "led-log-is-dropped",
        "M7",
        "a log that a proposer leads is not dropped",
        (Edit("HostedLog.users", "appender in self.sessions.by_connection", "False"),),
        turns_red=DROPPED_TEST + "test_a_log_that_a_proposer_leads_is_not_dropped",
        why_named=REAL_FILES,
    ),
)
