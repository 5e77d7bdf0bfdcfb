"""What standbys, pagers and subscribers meet: PostgreSQL's replication protocol and their slots."""
