"""The figures of a daemon: their definitions, and the histogram of a duration. Pure.

    Metric     name, kind, help, unit and labels: one text for /metrics, the page and the alerts
    Figure     a metric, and how to read it from the object that has it
    Sample     one value now
    Times      a histogram of seconds

A name ends in `_total` if and only if the metric is a counter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")

# From a fast disk's fdatasync to a commit that has hung.
BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip


class Kind(Enum):
    """The kinds of Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One definition. `unit` is bytes, seconds or "" for a count or a flag."""

    name: str
    kind: Kind
    help: str
    unit: str
    labels: tuple[str, ...]


class Times:
    """A histogram of seconds. `observe` is for hot paths; one thread at a time calls it."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def mean_s(self) -> float | None:
        """Return the average, or None before the first duration."""
        count = sum(self.counts)
        return self.sum_s / count if count else None

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts, each with its upper bound as text."""
        total, shown = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), tuple(self.counts), strict=True):
            total += count
            shown.append((bound, float(total)))
        return shown


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric now. `labels` has the metric's labels, in their order."""

    metric: Metric
    value: float | Times
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Figure(Generic[T]):
    """A metric, and the function that reads it; None means that the value is not known."""

    metric: Metric
    read: Callable[[T], float | Times | None]


def gauge(name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "") -> Metric:
    """Return the definition of a value that rises and falls."""
    return Metric(name, Kind.GAUGE, text, unit, labels)


def counter(name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "") -> Metric:
    """Return the definition of a count since the daemon's start."""
    return Metric(name, Kind.COUNTER, text, unit, labels)


def histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    """Return the definition of a histogram of seconds."""
    return Metric(name, Kind.HISTOGRAM, text, "seconds", labels)


def samples(figures: Iterable[Figure[T]], of: T, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the figures of one object that are known."""
    for figure in figures:
        value = figure.read(of)
        if value is not None:
            yield Sample(figure.metric, value if isinstance(value, Times) else float(value), labels)


BUILD_INFO = gauge("walkeeper_build_info", "1, with the version of the daemon.", ("version",))
HTTP_REFUSALS = counter(
    "walkeeper_http_refusals_total",
    "Requests to --http that were refused; the audit lines have them.",
    ("reason",),
)
CERTIFICATE_END = gauge(
    "walkeeper_certificate_end_seconds",
    "The end of this daemon's certificate, in Unix time. Absent without a TLS file.",
    unit="seconds",
)
