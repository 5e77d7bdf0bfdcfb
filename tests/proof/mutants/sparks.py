"""Mutants of the data source of Spark: its options, its rows, and the offsets of its streams."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

OPTIONS = "tests/replay/test_spark_options.py::test_"
SHARES = "tests/replay/test_logged_shares.py::test_"
NO_SPARK = "the simulator reads no WAL as tables"

SPARKS = (
    Mutant(
        "errors-in-capitals-are-skipped",
        "replayed_tables",
        "damage fails a query unless onError says skip or report, in any case",
        (
            Edit(
                "PastOptions.on_problem",
                "one_of(self.values, 'onError', *_ON_ERROR)",
                "self.values.get('onError', 'fail')",
            ),
        ),
        turns_red=OPTIONS + "damage_fails_a_query_in_any_case[given2]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "wrong-values-wait-for-their-use",
        "replayed_tables",
        "a value that an option does not take is an error before a query begins",
        (Edit("PastOptions.parse", "made.refuse_wrong_values()"),),
        turns_red=OPTIONS + "a_wrong_value_is_an_error_also_where_it_is_not_used"
        "[given0-option onError: 'fial' is none of fail, skip, report]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "empty-options-count-as-none",
        "pgwal_options",
        "an option without a value is an error",
        (Edit("pgwal_options.known_options", "not value.strip()", "False"),),
        turns_red=OPTIONS + "an_option_without_a_value_is_named[PgWalOptions]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "executors-believe-their-own-copy",
        "logical_tables",
        "an executor that sees less of a logical log than the driver fails its task",
        (Edit("logical_tables.rows", "_refuse_shorter(log.files, partition.end)"),),
        turns_red=SHARES + "an_executor_that_sees_less_than_the_driver_fails_its_task",
        why_named=NO_SPARK,
    ),
)
