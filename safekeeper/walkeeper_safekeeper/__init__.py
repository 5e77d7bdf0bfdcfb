"""The safekeeper: keeps real WAL segments, votes, and streams what a quorum has.

consensus/                  promises, appends, acknowledgements, and how far readers may see
storage/                    the durable state and its form on a disk; disk/ is the real disk
safekeeper_driver           performs the core's effects, in groups, on the disk
proposer_session            turns the messages of a proposer or an operator into events
replication/                PostgreSQL's clients: standbys, pg_receivewal, subscriptions
archiving/                  sends segments to the archive, and reads them back from there
hosting/                    one log with all of these, its readers, the WAL that is kept; all logs
connections/                new connections: who gets in, how many do, and which one is next
server, safekeeper_daemon   the port, and the process
"""
