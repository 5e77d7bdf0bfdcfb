"""Types of option values (sizes, durations, addresses) and the sources of these values.

Every option is looked up in this order: the command line, the environment (WALKEEPER_DATA_DIR for
--data-dir), the TOML file of --config, the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from walkeeper_cli.configuration_file import load_defaults
from walkeeper_common.addresses import Address, is_host, shown_address
from walkeeper_common.cluster_name import check_cluster_name
from walkeeper_common.errors import Refused
from walkeeper_common.quorum import ZONE

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # newer versions of click made it generic
else:
    ParamType = click.ParamType

SIZE_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
DURATION_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_MAX = (1 << 63) - 1  # the greatest offset in a file
DURATION_S_MAX = 3650 * 86400.0  # clocks and sleeps take no more than 292 years
SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
APPLICATION_NAME_BYTES_MAX = 63
CONFIG, LOG_LEVEL = "walkeeper.config", "walkeeper.log_level"
LOG_LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Size(ParamType):
    """`16MB`, `1GB`, PostgreSQL's units of 1024; a bare number is bytes."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        found = re.fullmatch(r"(\d{1,20})\s*([A-Za-z]*)", str(value).strip())
        if not found or found.group(2).lower() not in SIZE_UNITS:
            self.fail(f"{value!r} is not a size such as 16MB or 1GB", param, ctx)
        size = int(found.group(1)) * SIZE_UNITS[found.group(2).lower()]
        if size > SIZE_MAX:
            self.fail(f"{value!r} is beyond {SIZE_MAX >> 40} TB", param, ctx)
        return size


class Duration(ParamType):
    """`500ms`, `60s`, `5min`; a bare number is seconds. The value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
        if not found or found.group(2).lower() not in DURATION_UNITS_S:
            self.fail(f"{value!r} is not a duration such as 60s or 5min", param, ctx)
        duration_s = float(found.group(1)) * DURATION_UNITS_S[found.group(2).lower()]
        if duration_s > DURATION_S_MAX:
            self.fail(f"{value!r}: the longest duration is {DURATION_S_MAX / 86400:g}d", param, ctx)
        return duration_s


class Timeout(Duration):
    """A duration greater than zero."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        duration_s = super().convert(value, param, ctx)
        if not duration_s:
            self.fail(f"{value!r}: the timeout must be greater than 0", param, ctx)
        return duration_s


class HostPort(ParamType):
    """`127.0.0.1:5454`, `[::1]:5454`. A port to listen on may be 0: any free one."""

    name = "host:port"

    def __init__(self, *, port_min: int = 1) -> None:
        self._port_min = port_min

    def convert(self, value: Any, param: Any, ctx: Any) -> Address:
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            self.fail(f"{value!r}: write an IPv6 address as [::1]:5454", param, ctx)
        if not colon or not host:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:5454", param, ctx)
        if not is_host(host):
            self.fail(f"{value!r}: {host!r} cannot be a host's name", param, ctx)
        if not port.isascii() or not port.isdigit() or not self._port_min <= int(port) <= 65535:
            self.fail(f"{value!r}: the port is {self._port_min} to 65535", param, ctx)
        return host, int(port)


class Publications(ParamType):
    """`orders,customers`: names as they are in pg_publication."""

    name = "publications"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(",")) if value else ()
        if not all(names) or len(set(names)) != len(names):
            self.fail(f"{value!r} is not NAME[,NAME], each of them once", param, ctx)
        return names


class HostPorts(ParamType):
    """`H:P,H:P,H:P`; in the TOML file also a list."""

    name = "host:port,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Address, ...]:
        if isinstance(value, tuple):
            return value
        items = value if isinstance(value, list) else str(value).split(",")
        if any(re.search(r"[;\s]", str(item).strip()) for item in items):
            self.fail(f"{value!r}: separate the safekeepers with commas", param, ctx)
        addresses = tuple(HostPort().convert(item, param, ctx) for item in items)
        if twice := {address for address in addresses if addresses.count(address) > 1}:
            self.fail(
                f"{shown_address(min(twice))} is there twice; name each safekeeper once", param, ctx
            )
        return addresses


class ZoneName(ParamType):
    """A zone's label, such as `eu-west-1a`."""

    name = "zone"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not ZONE.fullmatch(str(value)):
            self.fail(
                f"{value!r} is no zone: use letters, digits, points, dashes and underscores, at "
                "most 63",
                param, ctx,
            )  # fmt: skip
        return str(value)


class MemberZone(ParamType):
    """`ID=ZONE`: the member's id and its zone."""

    name = "id=zone"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, str]:
        if isinstance(value, tuple):
            return value
        number, equals, zone = str(value).strip().partition("=")
        if not equals or not number.isascii() or not number.isdigit():
            self.fail(f"{value!r} is not ID=ZONE, such as 1=a", param, ctx)
        return int(number), ZoneName().convert(zone, param, ctx)


class MemberZones(ParamType):
    """`ID=ZONE,ID=ZONE`; in the TOML file also a list."""

    name = "id=zone,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[tuple[int, str], ...]:
        if isinstance(value, tuple):
            return value
        items = value if isinstance(value, list) else str(value).split(",")
        return tuple(MemberZone().convert(item, param, ctx) for item in items)


class ApplicationName(ParamType):
    """A name that synchronous_standby_names can hold and PostgreSQL does not cut off."""

    name = "name"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        text = str(value)
        printable = text.isascii() and text.isprintable()
        if not printable or text == "*" or not 1 <= len(text) <= APPLICATION_NAME_BYTES_MAX:
            self.fail(
                f"{text!r} cannot be an application name: 1 to {APPLICATION_NAME_BYTES_MAX} "
                "ASCII characters, and not *",
                param,
                ctx,
            )
        return text


class SlotName(ParamType):
    """PostgreSQL's own rule for replication slots."""

    name = "name"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not SLOT_NAME.fullmatch(str(value)):
            self.fail(f"{value!r}: a slot's name is made of a-z, 0-9 and _, 63 at most", param, ctx)
        return str(value)


class Dsn(ParamType):
    """A connection string of libpq, service included."""

    name = "dsn"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        from walkeeper_proposer.postgres.dsn import InvalidDsn, libpq_parameters

        try:
            libpq_parameters(str(value))
        except InvalidDsn as error:
            self.fail(error.reason, param, ctx)
        return str(value)


class ClusterName(ParamType):
    """A name that is a folder's name on every safekeeper."""

    name = "name"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            check_cluster_name(str(value))
        except Refused as error:
            self.fail(str(error), param, ctx)
        return str(value)


class EnvironmentOption(click.Option):
    """An option that `WALKEEPER_<OPTION>` gives as well."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        flags = [flag for flag in self.opts if flag.startswith("--")]
        if self.envvar is None and flags:
            name = max(flags, key=len).removeprefix("--").replace("-", "_")
            self.envvar = f"WALKEEPER_{name.upper()}"

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Name the variable, too, if the option is missing."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            error.param_hint = f"'{self.opts[0]}', or {self.envvar} in the environment"
            raise

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Refuse an option of this command, and a path that is empty or has control characters.

        `attach --grants --dsn …` lacks a value. click would take `--dsn` as that value, and no DSN.
        An empty path, as of a variable that a script forgot to set, would mean this directory. A
        path with the end of a line in it, as from a file of another system, names another file.
        """
        if isinstance(value, str) and any(value in each.opts for each in ctx.command.params):
            raise click.BadParameter(f"a value is missing before {value}", ctx, self)
        if isinstance(self.type, click.Path) and isinstance(value, str):
            if not value:
                raise click.BadParameter("the path is empty", ctx, self)
            if any(ord(character) < 32 for character in value):
                raise click.BadParameter(f"{value!r} has control characters", ctx, self)
        return super().type_cast_value(ctx, value)


def option(*declarations: str, **keywords: Any) -> Callable[[Function], Function]:
    """Return a click.option that also reads the environment and the TOML file."""
    return click.option(*declarations, cls=EnvironmentOption, **keywords)


def _read_configuration(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    path = value or ctx.meta.get(CONFIG)
    if path and not ctx.resilient_parsing:
        above = ctx.parent.command if ctx.parent and ctx.parent.parent else None
        group = above if isinstance(above, click.Group) else None
        program = ctx.find_root().command
        assert isinstance(program, click.Group), f"{program=}"
        values = load_defaults(path, ctx.command, group, program)
        ctx.default_map = {**(ctx.default_map or {}), **values}


def _keep_log_level(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return str(value or ctx.meta.get(LOG_LEVEL) or "INFO").upper()


def config_option(function: Function) -> Function:
    """Add --config, also after the command's name; it is read before every other option."""
    return option(
        "--config",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_read_configuration,
        help="TOML file with values for the options.",
    )(function)


def log_level_option(function: Function) -> Function:
    """Add --log-level, also after a daemon's name."""
    return option(
        "--log-level",
        type=click.Choice(LOG_LEVELS, case_sensitive=False),
        callback=_keep_log_level,
        help="How much to log on stderr.  [default: INFO]",
    )(function)


log_json_option = option(
    "--log-json", is_flag=True, help="Write each line of the log as a JSON object."
)


def process_option(
    *declarations: str, use: Callable[[Any], None], **keywords: Any
) -> Callable[[Function], Function]:
    """Return an option whose value `use` puts into effect for this process.

    The command does not get the value. `use` runs before the command, also without a value."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if not ctx.resilient_parsing:
            use(value)

    return option(*declarations, expose_value=False, callback=callback, **keywords)


def use_tls(file: str | None) -> None:
    """Use this file for TLS to safekeepers, or no TLS without one."""
    from walkeeper_common.shell.tls.own_credentials import use_credentials

    use_credentials(file)


def use_archive_keys(file: str | None) -> None:
    """Use the keys of this file for an encrypted archive."""
    if file is not None:
        from walkeeper_archive.own_keys import use_keys

        use_keys(file)


def use_token(file: str | None) -> None:
    """Use the tokens of this file for --http of this process."""
    from walkeeper_common.shell.http.http_locks import use_http_token

    use_http_token(file)


def use_https(is_on: bool) -> None:
    """Let --http of this process speak TLS, or not."""
    from walkeeper_common.shell.http import http_locks

    http_locks.use_https(is_on=is_on)


tls_option = process_option(
    "--tls",
    use=use_tls,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Speak TLS to safekeepers, with the key, the certificate and the CA in this file. "
    "`walkeeper certs` makes it.",
)
archive_keys_option = process_option(
    "--archive-keys",
    use=use_archive_keys,
    metavar="FILE",
    help="The keys of an encrypted archive: lines of an id and 64 hexadecimal digits. env:NAME "
    "takes the lines of a variable.",
)
safekeepers_option = option(
    "--safekeepers",
    type=HostPorts(),
    required=True,
    metavar="H:P,H:P,H:P",
    help="Every safekeeper of the log.",
)
dsn_option = option(
    "--dsn",
    type=Dsn(),
    required=True,
    metavar="DSN",
    help="The primary, for libpq: 'host=db1 user=walkeeper', postgresql://…, service=…. "
    "Keep passwords in ~/.pgpass. An empty DSN takes all from PGHOST, PGUSER, ….",
)
http_option = option(
    "--http",
    type=HostPort(port_min=0),
    metavar="HOST:PORT",
    help="Serve /metrics, /health and /ready here.",
)
http_token_option = process_option(
    "--http-token",
    use=use_token,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Ask clients of --http for a token in this file, one a line. /health and /ready stay "
    "open.",
)
http_tls_option = process_option(
    "--http-tls",
    use=use_https,
    is_flag=True,
    help="Speak TLS on --http with the file of --tls. A client needs a certificate of a monitor or "
    "an administrator, or the token.",
)
allow_unauthenticated_option = option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Allow --http beyond loopback without authentication, on a network that you trust.",
)
cluster_option = option(
    "--cluster",
    type=ClusterName(),
    default="main",
    show_default=True,
    metavar="NAME",
    help="The name of the log.",
)
json_option = option(
    "--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="Print JSON, for programs."
)
answer_timeout_option = option(
    "--timeout",
    type=Timeout(),
    default="10s",
    show_default=True,
    help="How long to wait for each answer.",
)
progress_timeout_option = option(
    "--timeout", type=Timeout(), help="Give up after this long without progress.  [default: wait]"
)
step_timeout_option = option(
    "--timeout",
    type=Timeout(),
    default="60s",
    show_default=True,
    help="The time limit of each step.",
)
promoted_slot_option = option(
    "--slot",
    type=SlotName(),
    help="The replication slot of the proposer that the promoted standby gets.  "
    "[default: walkeeper[_CLUSTER]]",
)


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return a decorator that adds these options in their order."""

    def add(function: Function) -> Function:
        for each in reversed(options):
            function = each(function)
        return function

    return add


log_options = together(safekeepers_option, tls_option, cluster_option)
"""The options of a command that asks the safekeepers of one log."""
ack_zones_option = option(
    "--ack-zones",
    type=click.IntRange(1, 32),
    metavar="Z",
    help="From how many zones acknowledgements of a commit come: with 2, a commit that returned "
    "survives the loss of a whole zone. 1 counts no zones.  [default: as now, or 1]",
)
zone_stop_option = option(
    "--allow-zone-stop",
    is_flag=True,
    help="Accept an ack rule under which the loss of one zone stops commits, until it is back.",
)


def default_name(cluster: str) -> str:
    """Return the default name of a cluster's slot and proposer."""
    return "walkeeper" if cluster == "main" else f"walkeeper_{cluster}"


def slot_of(slot: str | None, cluster: str) -> str:
    """Return --slot or the default, with _ for the - and . that a slot's name may not have.

    Raise UsageError if the name is not possible for a slot.
    """
    name = slot or default_name(cluster).replace("-", "_").replace(".", "_")
    if not SLOT_NAME.fullmatch(name):
        raise click.UsageError(
            f"cluster {cluster!r} gives the slot name {name!r}, which PostgreSQL does not allow: "
            "name a slot of a-z, 0-9 and _ with --slot, the same for create and proposer"
        )
    return name
