"""Serve PostgreSQL's replication protocol, with slots, to standbys, pagers and subscribers."""
