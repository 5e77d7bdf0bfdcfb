"""The operator's work on a log as a library: create, status, replace, settle, attach, detach.

create, replace, replaying, reserving   change a log, its members or its timelines
status, archive_status, log_kind        read the state of a log and of its archive
safekeeper_client                       ask one safekeeper and wait for its answer
primary/                                prepare a PostgreSQL server and release it again
"""
