"""The plan of the workers for the files of tests: decided before the first one runs.

pytest-xdist gives the next file to the worker that is free first, so the clock decides which tests
share a process. Here the files' usual times decide. One tree runs in one way, on each machine.

    make test DURATIONS=0 | tee LOG
    python -m tests.support.scheduling LOG      SECONDS anew, from that run
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# All files that use Spark share one worker, and so one Java machine: its start takes seconds.
WITH_SPARK = (
    "tests/history/test_live_cluster.py",
    "tests/history/test_pushdown.py",
    "tests/history/test_pyspark.py",
    "tests/replay/test_killed_spark_postgres.py",
    "tests/replay/test_logged_changes.py",
    "tests/replay/test_pyspark_past.py",
    "tests/replay/test_read_once.py",
    "tests/replay/test_spark_changes_stream.py",
    "tests/replay/test_spark_problems_stream.py",
    "tests/replay/test_spark_times.py",
)
# Seconds on two busy cores, of files that take 5 s and more.
SECONDS: Mapping[str, float] = {
    "tests/archive/test_check_postgres.py": 10,
    "tests/archive/test_late_newcomers_postgres.py": 25,
    "tests/archive/test_offload.py": 15,
    "tests/archive/test_offload_gaps.py": 10,
    "tests/archive/test_offload_logical.py": 10,
    "tests/archive/test_offload_postgres.py": 40,
    "tests/archive/test_offload_s3.py": 20,
    "tests/archive/test_replaced_postgres.py": 10,
    "tests/archive/test_restore_postgres.py": 15,
    "tests/archive/test_stores.py": 10,
    "tests/archive/test_timelines_postgres.py": 15,
    "tests/archive/test_verification.py": 10,
    "tests/cli/test_attach.py": 20,
    "tests/cli/test_audience.py": 20,
    "tests/cli/test_detach_one.py": 10,
    "tests/cli/test_replace_command.py": 10,
    "tests/cli/test_restore_guard.py": 25,
    "tests/common/test_daemon_output.py": 10,
    "tests/common/test_entries.py": 10,
    "tests/common/test_http_endpoints.py": 20,
    "tests/common/test_wal_format.py": 15,
    "tests/consensus/test_scenarios.py": 10,
    "tests/history/test_archives.py": 15,
    "tests/history/test_find_postgres.py": 25,
    "tests/history/test_live_cluster.py": 20,
    "tests/history/test_proven_index_postgres.py": 20,
    "tests/history/test_pushdown.py": 35,
    "tests/history/test_pyspark.py": 60,
    "tests/history/test_reading.py": 10,
    "tests/history/test_report_postgres.py": 15,
    "tests/history/test_stats_postgres.py": 10,
    "tests/history/test_stats_versions.py": 10,
    "tests/history/test_tables_postgres.py": 10,
    "tests/house/test_language.py": 15,
    "tests/house/test_tidy.py": 20,
    "tests/kubernetes/test_cloudnative_pg.py": 20,
    "tests/pager/test_pager_postgres.py": 20,
    "tests/pager/test_pages_postgres.py": 25,
    "tests/proof/test_explore.py": 30,
    "tests/proof/test_fuzz.py": 10,
    "tests/proof/test_logical_simulator.py": 15,
    "tests/proof/test_mutants.py": 30,
    "tests/proof/test_register_rivals.py": 10,
    "tests/proof/test_simulator.py": 45,
    "tests/proposer/test_full_history.py": 10,
    "tests/proposer/test_primary.py": 35,
    "tests/proposer/test_primary_sql.py": 10,
    "tests/proposer/test_publication_tables.py": 10,
    "tests/proposer/test_silent_primary.py": 15,
    "tests/proposer/test_standby_retention.py": 10,
    "tests/replay/test_bases_postgres.py": 15,
    "tests/replay/test_catalogs_postgres.py": 10,
    "tests/replay/test_change_stream_postgres.py": 70,
    "tests/replay/test_damaged_catalogs_postgres.py": 20,
    "tests/replay/test_every_type_postgres.py": 15,
    "tests/replay/test_hostile_names_postgres.py": 10,
    "tests/replay/test_lake_mirrors_postgres.py": 25,
    "tests/replay/test_lake_sinks_postgres.py": 15,
    "tests/replay/test_large_mirrors_postgres.py": 25,
    "tests/replay/test_logged_changes.py": 30,
    "tests/replay/test_lost_changes_postgres.py": 10,
    "tests/replay/test_object_names_postgres.py": 10,
    "tests/replay/test_odd_tables_postgres.py": 10,
    "tests/replay/test_open_changes_postgres.py": 10,
    "tests/replay/test_pyspark_past.py": 15,
    "tests/replay/test_read_once.py": 15,
    "tests/replay/test_redo_postgres.py": 20,
    "tests/replay/test_spark_changes_stream.py": 20,
    "tests/replay/test_spark_problems_stream.py": 10,
    "tests/replay/test_spark_times.py": 25,
    "tests/replay/test_table_at_postgres.py": 25,
    "tests/replay/test_undescribed_postgres.py": 25,
    "tests/replay/test_undo_postgres.py": 20,
    "tests/safekeeper/test_idle_logs.py": 10,
    "tests/safekeeper/test_wal_power_cuts.py": 10,
    "tests/safekeeper/test_wal_store.py": 10,
    "tests/safekeeper/test_wal_stream.py": 15,
    "tests/with_postgres/test_bench.py": 10,
    "tests/with_postgres/test_client_encoding.py": 15,
    "tests/with_postgres/test_closed_start.py": 20,
    "tests/with_postgres/test_copy_versions.py": 20,
    "tests/with_postgres/test_crafted_wal_end.py": 20,
    "tests/with_postgres/test_demo.py": 35,
    "tests/with_postgres/test_died_in_switch.py": 15,
    "tests/with_postgres/test_gated_server.py": 20,
    "tests/with_postgres/test_kills.py": 20,
    "tests/with_postgres/test_laggard.py": 10,
    "tests/with_postgres/test_late_newcomers.py": 15,
    "tests/with_postgres/test_log_is_closed.py": 20,
    "tests/with_postgres/test_logical.py": 65,
    "tests/with_postgres/test_logical_beginning.py": 10,
    "tests/with_postgres/test_logical_branches.py": 10,
    "tests/with_postgres/test_logical_commands.py": 10,
    "tests/with_postgres/test_logical_copy.py": 30,
    "tests/with_postgres/test_logical_encodings.py": 25,
    "tests/with_postgres/test_logical_large.py": 20,
    "tests/with_postgres/test_logical_options.py": 10,
    "tests/with_postgres/test_logical_replace.py": 10,
    "tests/with_postgres/test_logical_streaming.py": 15,
    "tests/with_postgres/test_logical_subscriptions.py": 75,
    "tests/with_postgres/test_logical_versions.py": 40,
    "tests/with_postgres/test_logs_and_slots.py": 10,
    "tests/with_postgres/test_lost_members.py": 15,
    "tests/with_postgres/test_members.py": 30,
    "tests/with_postgres/test_open_transaction.py": 10,
    "tests/with_postgres/test_other_versions.py": 35,
    "tests/with_postgres/test_primary_is_lost.py": 25,
    "tests/with_postgres/test_promotions.py": 30,
    "tests/with_postgres/test_refusals.py": 20,
    "tests/with_postgres/test_replace.py": 45,
    "tests/with_postgres/test_reserved_timelines.py": 20,
    "tests/with_postgres/test_restore.py": 70,
    "tests/with_postgres/test_same_bytes.py": 20,
    "tests/with_postgres/test_scan_versions.py": 10,
    "tests/with_postgres/test_several_proposers.py": 35,
    "tests/with_postgres/test_shutdown.py": 10,
    "tests/with_postgres/test_snapshot.py": 20,
    "tests/with_postgres/test_spares.py": 15,
    "tests/with_postgres/test_standby_feedback.py": 30,
    "tests/with_postgres/test_standby_moves.py": 20,
    "tests/with_postgres/test_standby_under_load.py": 15,
    "tests/with_postgres/test_switchover.py": 10,
    "tests/with_postgres/test_sync_state.py": 25,
    "tests/with_postgres/test_timeline_collision.py": 30,
    "tests/with_postgres/test_tls_clients.py": 20,
    "tests/with_postgres/test_tls_cluster.py": 10,
    "tests/with_postgres/test_tls_commands.py": 15,
    "tests/with_postgres/test_unfinished_record.py": 15,
    "tests/with_postgres/test_up.py": 85,
    "tests/with_postgres/test_users.py": 10,
    "tests/with_postgres/test_zones.py": 10,
}
SECONDS_OF_A_TEST = 0.05
LEAST_S, STEP_S = 5.0, 5
DURATION = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +(\S+?)::", re.MULTILINE)


def scope_of(file: str) -> str:
    """Return the name of what runs in one piece: a file, or all files that use Spark."""
    return WITH_SPARK[0] if file in WITH_SPARK else file


def seconds_of(scope: str, tests: int) -> float:
    """Return how long the tests of a scope usually take."""
    files = WITH_SPARK if scope == WITH_SPARK[0] else (scope,)
    return sum(SECONDS.get(file, 0.0) for file in files) or tests * SECONDS_OF_A_TEST


def planned(seconds: Mapping[str, float], workers: int) -> dict[str, int]:
    """Return the worker of each scope: the longest first, each to the worker with the least."""
    plan, loads = dict[str, int](), [0.0] * workers
    for scope in sorted(seconds, key=lambda scope: (-seconds[scope], scope)):
        plan[scope] = loads.index(min(loads))
        loads[plan[scope]] += seconds[scope]
    return plan


class PlannedScheduling(LoadFileScheduling):  # type: ignore[misc]  # it ships no types
    """Give each worker the files of its plan, in the order of the collection."""

    _plan: dict[str, int] | None = None

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid))

    def _next_of(self, node: WorkerController) -> str | None:
        """Return the next scope of this worker, or of one that has crashed."""
        if self._plan is None:
            seconds = {name: seconds_of(name, len(unit)) for name, unit in self.workqueue.items()}
            self._plan = planned(seconds, len(self.nodes))
        alive = {_number(one) for one in self.nodes}
        for scope in map(str, self.workqueue):
            worker = self._plan[scope]
            if worker == _number(node) or worker not in alive:
                return scope
        return None

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next_of(node)
        # A worker in place of one that crashed may have collected nothing yet.
        if scope is not None and node in self.registered_collections:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and self._next_of(node) is None:
            if not node.shutting_down:
                node.shutdown()
        else:
            super()._reschedule(node)


def _number(node: WorkerController) -> int:
    return int(node.gateway.id.removeprefix("gw"))


def in_order(files: Iterable[str]) -> dict[str, int]:
    """Return the place of each file that takes long; these begin first."""
    longest = sorted(SECONDS, key=lambda file: -SECONDS[file])
    places = {file: place for place, file in enumerate(longest)}
    return {file: places.get(file, len(places)) for file in files}


def measured(log: str) -> dict[str, int]:
    """Return SECONDS of the durations in a log of pytest, rounded up to steps of 5 s."""
    totals = dict[str, float]()
    for seconds, file in DURATION.findall(log):
        totals[file] = totals.get(file, 0.0) + float(seconds)
    long = sorted((file, total) for file, total in totals.items() if total >= LEAST_S)
    return {file: int(-(-total // STEP_S) * STEP_S) for file, total in long}


if __name__ == "__main__":
    for name, number in measured(Path(sys.argv[1]).read_text()).items():
        sys.stdout.write(f'    "{name}": {number},\n')
