"""The safekeeper: keeps real WAL segments, votes, and streams what a quorum has.

consensus/                promises, appends, acknowledgements, and how far readers may see
storage/                  what is durable, and its form on a disk; disk/ is that disk for real
driver                    performs the core's effects, in groups, on the disk
proposer_session          what a proposer or an operator sends, made into events
replication/              PostgreSQL's clients: standbys, pg_receivewal, subscriptions
archiving/                what goes to the archive, and comes back from there
hosted_log, log_catalog   one log with all of these, and all logs
server, daemon            the port, and the process
"""
