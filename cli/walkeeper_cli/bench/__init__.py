"""`walkeeper bench`: what synchronous replication through walkeeper costs, beside what is usual.

disk.py         the disk that all of it runs on, and its counters
bench_server.py one primary, made once, for all sides
sides.py        who acknowledges its commits: three pg_receivewal, three safekeepers, nobody
commit.py, bulk.py, failover.py     what is measured
pairs.py        alternating rounds, ratios and their medians
report.py       table, JSON, plot
show.py         a run from nothing to nothing
"""
