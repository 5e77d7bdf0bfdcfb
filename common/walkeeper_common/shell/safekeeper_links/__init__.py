"""Connections between a proposer, a command or a program and one safekeeper.

One body makes requests of our own protocol (wire/conversation.py), over two transports:

safekeeper_client    asyncio, one question: create, status, logs, reservations, reports, `up`
committed_wal        blocking: restore, the comparison with a standby, the repair of a segment

Two modules connect for them, with the same rules of TLS: safekeeper_connection for asyncio and
safekeeper_socket for blocking programs. framed_connection is a stream and no request. On it, a
proposer and a safekeeper send at any time. history, the pager and the slots of consumers speak
PostgreSQL's protocol through libpq, as each client of a safekeeper may.
"""
