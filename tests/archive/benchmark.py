"""`walkeeper bench archive-put` and `bench archive` on an S3 server of this machine (moto's).

    python -m tests.archive.benchmark [--rounds 3] [--seconds 10] [--segments 24] [--dir DIR]

The server is written in Python and shares the machine with all else. So MB/s are its more than
ours, and commits lose the CPU that it takes from them. The ratios are of one run, the sides in
turn. For a directory: `walkeeper bench archive-put` and `walkeeper bench archive`. For a store of
one's own: the same with --archive s3://… and its variables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.support.s3_server import s3_server


def main() -> int:
    """Return the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.archive.benchmark")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side is measured")
    parser.add_argument("--seconds", type=int, default=10, help="of pgbench, a side and round")
    parser.add_argument("--segments", type=int, default=24, help="of 16 MB, a side and round")
    parser.add_argument("--dir", help="on the disk of PostgreSQL and safekeepers, not a tmpfs")
    parser.add_argument("--only", choices=["archive-put", "archive"], help="one of the two")
    given = parser.parse_args()
    sizes = {"archive-put": ("--segments", given.segments), "archive": ("--seconds", given.seconds)}
    with s3_server() as served:
        environment = {**os.environ, **served.environment_at(served.honest_port)}
        for what, (flag, size) in sizes.items():
            if given.only in (None, what):
                command = [sys.executable, "-m", "walkeeper_cli", "bench", what]
                command += ["--archive", served.url, "--rounds", str(given.rounds), flag, str(size)]
                command += ["--dir", given.dir] if given.dir else []
                code = subprocess.run(command, env=environment).returncode
                if code:
                    return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
