"""`walkeeper bench`: the cost of synchronous replication through walkeeper and the usual ways.

disk.py         the disk that all sides share, and its counters
bench_server.py one primary, made once, for all sides
sides.py        the receivers of commits: three pg_receivewal, three safekeepers, or none
cables.py       the distance to the receivers, by a delay_line.py for each
commit.py, bulk.py, failover.py     the measurements of a primary's commits
archiving.py    commits beside the archive; archive_put.py measures the archive alone
rounds.py       the form of a benchmark: some rounds, in each the sides in turn
pairs.py        alternating rounds, ratios and their medians
bench_report.py table, JSON, plot
bench_run.py    a run, which leaves nothing on the machine
"""
