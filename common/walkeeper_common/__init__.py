"""The words, messages and formats that proposer, safekeeper and command line share.

lsn, history, timelines, quorum    positions, who wrote which range, what a quorum has
wire/                              the messages of proposer and safekeeper, and their bytes
postgres/                          PostgreSQL's protocols, both sides, and its WAL as bytes
entries                            a logical log's own form
errors                             every exception, named after what the caller does next
shell/                             the edges of a daemon (all other modules do no I/O)
"""
