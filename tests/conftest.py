"""Parts that all tests share: their order, their seeds, and one Java machine.

The order of the tests follows from the tree, the draws of each test from a fixed seed: the same
tree gives the same verdict. `make soak` draws both anew.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.seeds import is_fixed, order_seed, seed_of_run
from tests.support.spread_folders import temporary_files_spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Fix the seeds, before pytest-randomly draws one of its own; spread temporary files."""
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = order_seed()
    if config.pluginmanager.hasplugin("hypothesispytest"):
        _fix_hypothesis()
    if not hasattr(config, "workerinput"):  # a worker inherits the environment
        spread = contextlib.ExitStack()
        spread.enter_context(temporary_files_spread())
        config.add_cleanup(spread.close)


def _fix_hypothesis() -> None:
    """Take the clock out of its examples, and in the gate all chance."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "walkeeper",
        deadline=None,
        database=None,
        derandomize=is_fixed(),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("walkeeper")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, behind pytest-randomly, whose order all workers share."""
    from tests.support.scheduling import in_order

    files = [item.nodeid.partition("::")[0] for item in items]
    place = in_order(files)
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """Keep the collected tests out of each later garbage collection: they live to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Plan which worker runs which file."""
    from tests.support.scheduling import PlannedScheduling

    return PlannedScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of all daemons to the report of a failed test: one may have ended."""
    report = yield
    module = sys.modules.get("tests.support.cluster")
    if report.failed and module is not None:
        report.sections += [("daemons", each.told()) for each in module.open_clusters]
    return report


@pytest.fixture(autouse=True)
def _seeds_as_fixed() -> None:
    """Seed the random module's own generator, which a library may draw from."""
    random.seed(seed_of_run())


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command that a test runs in its process did to this process's log."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark_pgwal.session import session

    made = session(
        "local[2]",
        spark_sql_shuffle_partitions="2",
        # Short queries in one process: to compile thoroughly costs more than it saves.
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
