"""Options of Spark's tables: a value that an option does not take is named at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_pgwal.logical_tables import LoggedOptions
from pyspark_pgwal.pgwal_options import PgWalOptions
from pyspark_pgwal.replayed_tables import PastOptions
from pyspark_pgwal.stream_reader import PgWalStreamReader
from walkeeper_wal.sources.plan import Problem
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

DAMAGE = Problem("0001", 0, None, "incorrect resource manager data checksum")


def changes(**given: str) -> PastOptions:
    return PastOptions.parse({"path": "wal", "table": "changes", **given})


@pytest.mark.parametrize("given", [{}, {"onerror": "fail"}, {"onerror": "FAIL"}])
def test_damage_fails_a_query_in_any_case(given: dict[str, str]) -> None:
    """FAIL counted as skip: the changes after the damage were left out, or not complete."""
    with pytest.raises(DamagedWal, match="checksum"):
        changes(**given).on_problem(DAMAGE)
    changes(onerror="Skip").on_problem(DAMAGE)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"onerror": "fial"}, "option onError: 'fial' is none of fail, skip, report"),
        ({"allowmissing": "yes"}, "option allowMissing: 'yes' is none of false, true"),
        ({"parts": "²"}, "option parts: '²' is not a number above 0"),
        ({"timeline": "0"}, "option timeline: '0' is not a number above 0"),
        ({"maxbytespertrigger": "1g"}, "option maxBytesPerTrigger: '1g' is not a number"),
        ({"endlsn": "16B3748x"}, "option endLsn: '16B3748x' is not an LSN"),
        ({"starttime": "noon"}, "option startTime: 'noon' is not a time"),
        ({"relation": " , "}, "option relation: ' , ' has no name of a table"),
        ({"base": ""}, "option base is empty: leave it out, or give a value"),
        ({"relation": ""}, "option relation is empty"),
    ],
)
def test_a_wrong_value_is_an_error_also_where_it_is_not_used(
    given: dict[str, str], text: str
) -> None:
    """A misspelt onError skipped damage, and an empty base or relation counted as none."""
    with pytest.raises(HistoryError, match=text):
        changes(**given)


@pytest.mark.parametrize("options", [PgWalOptions, LoggedOptions])
def test_an_option_without_a_value_is_named(options: Any) -> None:
    given = {"path": "wal", "table": "changes" if options is LoggedOptions else "records"}
    with pytest.raises(HistoryError, match="option startLsn is empty"):
        options.parse({**given, "startlsn": " "})


def test_payload_beside_columns_is_refused() -> None:
    """The columns with bytes were left out, without a word."""
    given = {"path": "wal", "columns": "xid"}
    assert PgWalOptions.parse({**given, "payload": "false"}).columns == ("xid",)
    with pytest.raises(HistoryError, match="option payload adds nothing beside columns"):
        PgWalOptions.parse({**given, "payload": "true"})


@pytest.mark.parametrize(
    ("given", "name"), [({"pushdown": "true"}, "pushdown"), ({"index": "facts"}, "index")]
)
def test_a_stream_refuses_an_option_that_would_have_no_effect(
    tmp_path: Path, given: dict[str, str], name: str
) -> None:
    """A stream has no filters, so that it read each segment, index or not."""
    with pytest.raises(HistoryError, match=f"leave out the option {name}"):
        PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path), **given}))


def test_a_stream_takes_an_index_for_its_times(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "index": "facts", "starttime": "2024-05-01 12:30:00+02"}
    PgWalStreamReader(PgWalOptions.parse({**given, "pushdown": "false"}))
