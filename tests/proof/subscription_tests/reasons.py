"""The tests that do not pass through a logical log, and why.

The reasons are those of docs/logical.md, in the same order.
"""

from __future__ import annotations

PART = "its ALTER SUBSCRIPTION names other publications than those of the log: 42704"
UNKNOWN = "its subscription names a publication that does not exist: 42704, not a warning"
BY_SQL = "it makes or reads the subscription's slot with SQL on the publisher"
PREPARED = "it looks for prepared transactions on the subscriber"

REASONS = {
    "001_rep_changes": PART,
    "007_ddl": UNKNOWN,
    "013_partition": PART,
    "020_messages": BY_SQL,
    "021_twophase": PREPARED,
    "022_twophase_cascade": PREPARED,
    "023_twophase_stream": PREPARED,
    "024_add_drop_pub": PART,
    "100_bugs": BY_SQL,
}
