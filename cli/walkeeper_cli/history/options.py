"""The options that all of `walkeeper history` has: which WAL, and how to read it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from walkeeper_cli.options import ParamType, option
from walkeeper_common.lsn import Lsn
from walkeeper_history.time_text import parse_time

Function = TypeVar("Function", bound=Callable[..., Any])
ON_ERROR = ("fail", "skip", "report")
# numpy's threads for linear algebra, which nothing here does: they take memory, and where a limit
# keeps them from starting they raise SIGINT, as if somebody had interrupted the command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@dataclass(frozen=True, slots=True)
class Source:
    """What of which archive is read, and what happens where it is damaged."""

    path: str
    start_lsn: Lsn | None
    end_lsn: Lsn | None
    start_time: datetime | None
    end_time: datetime | None
    timeline: int | None
    on_error: str
    verify: str
    engine: str
    spark: bool
    jobs: int | None


@dataclass(frozen=True, slots=True)
class NameSource:
    """Where names of relations come from; none is a must."""

    catalogs: tuple[str, ...] = ()
    dsn: str | None = None
    base: str | None = None
    insists: bool = True
    """Without the server of `dsn` there is no answer."""


def is_asked_for(name: str) -> bool:
    """Whether an option is on the command line. In the environment or the TOML file --dsn is there
    for the commands that need the primary; history reads WAL when that is gone, and of others."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


class LsnText(ParamType):
    """`0/16B3748`."""

    name = "lsn"

    def convert(self, value: Any, param: Any, ctx: Any) -> Lsn:
        try:
            return value if isinstance(value, Lsn) else Lsn.parse(str(value).strip())
        except ValueError:
            self.fail(f"{value!r} is not an LSN such as 0/16B3748", param, ctx)


class Time(ParamType):
    """`2024-05-01 12:30:00+02`; UTC unless it says otherwise."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(str(value).strip())
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2024-05-01 12:30:00+02", param, ctx)


class Timeline(ParamType):
    """A number; as in names of files, also eight hexadecimal digits."""

    name = "timeline"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        text = str(value).strip()
        try:
            number = int(text, 16 if len(text) == 8 else 10)
        except ValueError:
            number = 0
        if not 0 < number < 1 << 32:
            self.fail(f"{value!r} is not a timeline such as 2 or 00000002", param, ctx)
        return number


_OPTIONS = (
    option(
        "--path", required=True, metavar="URL",
        help="A directory, a segment, s3://…, gs://…, az://…, or a live log: "
        "walkeeper://HOST:PORT,HOST:PORT/CLUSTER.",
    ),
    option("--start-lsn", type=LsnText(), metavar="LSN", help="Records that start here or later."),
    option("--end-lsn", type=LsnText(), metavar="LSN", help="Records that start before this."),
    option(
        "--start-time", type=Time(), metavar="TIME",
        help="From the first commit at this time or later.",
    ),
    option("--end-time", type=Time(), metavar="TIME", help="Up to the last commit before this."),
    option("--timeline", type=Timeline(), metavar="TLI", help="The newest, unless told otherwise."),
    option(
        "--on-error", type=click.Choice(ON_ERROR), default="fail", show_default=True,
        help="Damaged or missing WAL: stop; read on with a warning; read on and exit 1 at the end.",
    ),
    option(
        "--verify", type=click.Choice(["crc", "none"]), default="crc", show_default=True,
        help="Whether every record's CRC is checked.",
    ),
    option(
        "--engine", type=click.Choice(["auto", "numba", "numpy"]), default="auto", hidden=True,
        help="What walks over records.",
    ),
    option(
        "--spark", is_flag=True,
        help="By Spark's executors: those of spark-submit, else local ones.",
    ),
    option("--jobs", "-j", type=click.IntRange(1, 256), metavar="N", help="Threads; one a CPU."),
)  # fmt: skip


def source_options(function: Function) -> Callable[..., Any]:
    """All of them, handed over as one `source`."""
    return source_options_but()(function)


def source_options_but(**refused: str) -> Callable[[Function], Callable[..., Any]]:
    """All but those by these names, which a command would pass over in silence: they are not in
    its help, and a UsageError says what to do instead."""

    def add_to(function: Function) -> Callable[..., Any]:
        fields = tuple(Source.__dataclass_fields__)

        @functools.wraps(function)
        def gathered(**values: Any) -> Any:
            source = Source(**{name: values.pop(name) for name in fields})
            for name, instead in refused.items():
                if getattr(source, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise click.UsageError(f"{flag} has no meaning here: {instead}")
            return function(source=source, **values)

        wrapped: Callable[..., Any] = gathered
        for add in reversed(_OPTIONS):
            wrapped = add(wrapped)
        for parameter in wrapped.__click_params__:  # type: ignore[attr-defined]
            parameter.hidden |= parameter.name in refused
        return wrapped

    return add_to


def names_options(function: Function) -> Callable[..., Any]:
    """--catalog, --dsn and --base, handed over as one `named`."""

    @functools.wraps(function)
    def gathered(
        catalogs: tuple[str, ...], dsn: str | None, base: str | None, **values: Any
    ) -> Any:
        named = NameSource(catalogs, dsn or None, base, insists=is_asked_for("dsn"))
        return function(named=named, **values)

    catalog = option(
        "--catalog", "catalogs", multiple=True, metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Names of relations that `history catalog` wrote; may be repeated.",
    )  # fmt: skip
    dsn = option(
        "--dsn", metavar="DSN",
        help="Names as this server has them now. (Of WALKEEPER_DSN: if it answers, and the WAL is "
        "its own.)",
    )  # fmt: skip
    base = option(
        "--base", metavar="DIR", type=click.Path(exists=True, file_okay=False),
        help="Names as a base backup (plain format) and the WAL since then have them; also of what "
        "was dropped.",
    )  # fmt: skip
    return catalog(dsn(base(gathered)))
