"""The safekeeper: keeps real WAL segments, votes, and streams what a quorum has.

acceptor, readable                   the core: promises, appends, acknowledgements, reads
control_file, wal_store              what is durable; sealed_file, durable: its form
driver                               performs the core's effects, in groups, on the disk
server, *_session, daemon            the shell: sockets, threads, clocks
"""
