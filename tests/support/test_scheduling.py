"""The plan of the workers, and the times that it is made from."""

from __future__ import annotations

from tests.support.scheduling import measured, planned

LOG = """
============================= slowest durations ==============================
31.45s setup    tests/with_postgres/test_docker.py::test_the_image[a b]
4.10s call     tests/with_postgres/test_docker.py::test_the_image[a b]
2.00s call     tests/cli/test_user.py::test_x
3.00s teardown tests/cli/test_user.py::test_y
4.99s call     tests/cli/test_ports.py::test_z
"""


def test_the_times_of_a_log_are_summed_by_file_and_short_files_left_out() -> None:
    assert measured(LOG) == {"tests/cli/test_user.py": 5, "tests/with_postgres/test_docker.py": 40}


def test_the_longest_goes_to_the_worker_with_the_least() -> None:
    assert planned({"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0}, 2) == {"a": 0, "b": 1, "c": 1, "d": 0}
