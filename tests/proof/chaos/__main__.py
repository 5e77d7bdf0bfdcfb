"""The fault runner: real PostgreSQL and real daemons on one machine, and everything that breaks.

    python -m tests.proof.chaos --minutes 5                    faults by chance
    python -m tests.proof.chaos --rounds-per-fault 20          each kind so often: `make chaos`
    python -m tests.proof.chaos --only power_cut --only settle --rounds-per-fault 3
    python -m tests.proof.chaos --postgres 18                  another version than the machine's
    python -m tests.proof.chaos --list

A primary, three safekeepers, a supervised proposer and a standby run under load in network
namespaces. Each safekeeper has a disk of its own. The runner injects and mends one fault at a time.
Commits must flow again within 30 s after that, and every part must be back within 60 s.

Every so many faults, and at the end, the runner destroys the primary. It brings an older base
backup up to date from each two safekeepers, and every acknowledged commit must be there. It needs
root. The seed repeats the choice of faults; the machine's timing does not repeat.

Exit codes: 0 for a clean run, 1 if the runner or a daemon broke, 3 for no progress after healing.
Exit code 2 means that acknowledged data is lost or that safekeepers differ.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path

from tests.proof.chaos.checked_loads import Loads
from tests.proof.chaos.fault_report import Report
from tests.proof.chaos.fault_run import Plan, Runner, kept_evidence
from tests.proof.chaos.faulted_cluster import ChaosCluster
from tests.proof.chaos.kinds import KINDS, kinds_named
from tests.proof.chaos.loop_disk import remove_leftover_mounts
from tests.proof.chaos.namespaces import remove_leftovers, why_not
from tests.proof.chaos.verdicts import CannotRun, NoProgress, Violation
from tests.support.installations import WHEELS, Unavailable, binaries
from tests.support.postgres_server import installation
from tests.support.program_parser import program_parser

DIRECTORY = "walkeeper_chaos_"
KEPT = "walkeeper_kept_"


def main() -> int:
    arguments = parsed()
    if arguments.list:
        for kind in KINDS:
            doc = (kind.__doc__ or "").strip().splitlines()
            sys.stdout.write(f"{kind.name:24} {doc[0] if doc else ''}\n")
        return 0
    if reason := why_not():
        sys.stderr.write(f"the fault runner cannot run here: {reason}\n")
        return 1
    try:
        packaged = installation(binaries(arguments.postgres)) if arguments.postgres else None
    except Unavailable as error:
        sys.stderr.write(f"no PostgreSQL {arguments.postgres} here: {error}\n")
        return 1
    remove_old_runs()
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    plan = Plan(
        kinds=kinds_named(arguments.only),
        seed=seed,
        minutes=arguments.minutes or (55.0 if arguments.rounds_per_fault else 5.0),
        rounds=arguments.rounds_per_fault,
        check_every=arguments.check_every,
    )
    report = Report(seed)
    directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY}{os.getpid()}_"))
    with packaged or nullcontext():
        run_in(directory, plan, report)
    sys.stdout.write(f"\n{report.text()}\n")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report.document(), indent=1) + "\n")
    return report.exit_code


def parsed() -> argparse.Namespace:
    parser = program_parser("tests.proof.chaos", __doc__)
    parser.add_argument("--minutes", type=float, help="when to stop (5; 55 with rounds)")
    parser.add_argument("--rounds-per-fault", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--seed", type=int, help="of the choice of faults (default: random)")
    parser.add_argument("--only", action="append", metavar="KIND", help="may be repeated")
    parser.add_argument(
        "--check-every", type=int, default=80, metavar="N", help="faults between two checks"
    )
    parser.add_argument(
        "--postgres",
        type=int,
        choices=sorted(WHEELS),
        help="a server of this major version from a package (default: the machine's)",
    )
    parser.add_argument("--json", metavar="FILE", help="the figures for programs")
    parser.add_argument("--list", action="store_true", help="the kinds of faults")
    return parser.parse_args()


def remove_old_runs() -> None:
    """Remove the files of runs that were killed; a failed run's files have another name."""
    remove_leftovers()
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY}*"):
        pid = directory.name.removeprefix(DIRECTORY).partition("_")[0]
        if not Path(f"/proc/{pid}").exists():
            remove_leftover_mounts(f"{directory}/")
            shutil.rmtree(directory, ignore_errors=True)


def run_in(directory: Path, plan: Plan, report: Report) -> None:
    """Run the plan and fill the report. Keep the directory if the run fails."""
    directory.chmod(0o755)  # PostgreSQL runs as another user
    # Backups and restored servers go below it, too.
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    # A SIGTERM is an orderly end, too: namespaces and mounts must not stay.
    before_term = signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.write(f"seed {plan.seed}, {len(plan.kinds)} kinds of faults, in {directory}\n")
    try:
        with ChaosCluster.running(directory) as cluster:
            if not cluster.network.has_delay:
                sys.stdout.write("no netem in this kernel: slow_network is a narrow pipe\n")
            with Loads(cluster.primary, cluster.standby, directory) as loads:
                Runner(plan, cluster, loads, report).run()
        report.exit_code, report.verdict = 0, "nothing acknowledged was lost"
    except Violation as error:
        report.exit_code, report.verdict = 2, f"VIOLATION {told(error)}"
    except NoProgress as error:
        report.exit_code, report.verdict = 3, f"NO PROGRESS {told(error)}"
    except KeyboardInterrupt:
        report.verdict = "interrupted"
    except CannotRun as error:
        report.verdict = str(error)
    except Exception:
        report.verdict = traceback.format_exc()
    finally:
        signal.signal(signal.SIGTERM, before_term)
        tempfile.tempdir = before
    if report.exit_code and report.verdict != "interrupted":
        kept = directory.with_name(directory.name.replace(DIRECTORY, KEPT))
        directory.rename(kept)
        report.verdict += f"\n{kept_evidence(kept)}\n"
    else:
        shutil.rmtree(directory, ignore_errors=True)


def told(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


if __name__ == "__main__":
    sys.exit(main())
