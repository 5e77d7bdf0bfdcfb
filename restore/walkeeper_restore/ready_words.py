"""The words with which the script `walkeeper` takes a segment without Python. A shell.

    pg_wal/.walkeeper_prefetch/KEY.PID/words    the environment's options, as NAME=VALUE, then the
                                                command line without %f and %p; each on a line

PostgreSQL waits for the start of Python at each segment, and the start is most of that wait. So the
script (cli/scripts/walkeeper) takes a segment by itself if each of these holds:

* Its options and words are these. It can compare texts, but it has no checksum for a KEY.
* The standard input of the process PID is this server's postmaster.pid. Then the prefetcher runs,
  and this start of the server has proved its ancestry (R23). The prefetcher opens the file only
  after that proof. The next start makes another file, whose inode cannot be that of an open one.
* %f consists of hexadecimal digits, and a file of that name is in the folder. The prefetcher gives
  a name only to a segment that is fsynced, and whose first page fits the name and the server. The
  script waits a while for a segment that is being fetched.
* %p does not exist.

In all other cases, and after each failure, the script starts Python. Options and words with other
characters than those of printable ASCII are not here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from walkeeper_restore.spool import PART, variables

WORDS = "words"


def write_words(folder: str, options: Sequence[str]) -> None:
    """Write the words into the folder of a prefetcher, if the script can compare them."""
    lines = [*map("=".join, variables()), *options]
    if not all(line.isascii() and line.isprintable() for line in lines):
        return
    target = os.path.dirname(os.path.dirname(folder))
    if os.stat(folder).st_dev != os.stat(target).st_dev:
        return  # The script's `mv` would copy.
    path = os.path.join(folder, WORDS)
    with open(path + PART, "x", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in lines)
    os.rename(path + PART, path)
