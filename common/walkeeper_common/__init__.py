"""What proposer, safekeeper and command line share: words, messages, formats.

lsn, history, timelines, quorum    positions, who wrote which range, what a quorum has
wire/                              what proposer and safekeeper say (messages), and its bytes
postgres/                          PostgreSQL's protocols, both sides, and its WAL as bytes
entries                            a logical log's own form
errors                             every exception, named after what the caller does next
shell/                             what daemons do at their edges; all else does no I/O
"""
