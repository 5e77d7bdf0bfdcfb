"""What proposer, safekeeper and command line share: words, messages, formats. Mostly pure.

lsn, history, quorum    positions, who wrote which range, what a quorum has
messages, requests      what proposer and safekeeper say; fields, framing: as bytes
pgwire*, replication_*  PostgreSQL's own protocol, both sides
walformat, walpages     PostgreSQL's WAL as bytes on disk
errors                  every exception, named after what the caller does next
framed_connection, worker_thread, logs   the shell: sockets, threads, the log
"""
