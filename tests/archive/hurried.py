"""`walkeeper` whose archive's clock runs five times as fast, so that tests wait less.

The wait before another safekeeper takes over is 2 s instead of 10 s. All else is the same.
"""

from __future__ import annotations

from walkeeper_cli.start import main
from walkeeper_safekeeper.archiving import offload
from walkeeper_safekeeper.consensus import persisted_marks as marks
from walkeeper_safekeeper.hosting import hosted_log

if __name__ == "__main__":
    offload.TICK_S /= 5
    hosted_log.RETENTION_TICKS = marks.PERSIST_COMMIT_TICKS = 1
    main()
