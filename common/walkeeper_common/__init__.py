"""The words, messages and formats that proposer, safekeeper and command line share.

lsn, history, timelines, quorum    positions, who wrote which range, what a quorum has
wire/                              the messages of proposer and safekeeper, and their bytes
postgres/                          PostgreSQL's protocols, both sides, and its WAL as bytes
entries                            a logical log's own form
ancestry/                          R23: is the WAL of a server the log's, or another branch
access/                            identities, and what each of them may do
operator_text/                     text that people read: names, times, zones, hidden secrets
errors                             every exception, named after what the caller does next
shell/                             the edges of a daemon (all other modules do no I/O)

The modules outside a folder are the vocabulary that all packages share.
"""
