"""The operator's work on a log as a library: create, status, replace, settle, attach, detach.

Contract: what a command does is a coroutine, `check` an asynchronous generator. The caller starts
the event loop, and a blocking part runs in a worker thread.

create, members, replace    make a log, and change its members
replaying, reserving        prepare a promotion: what the standby has, and its timeline number
switchover, closed_start    hand over to a standby; start a primary closed
operators_commands          run the operator's commands that stop and start a server
logs, slots                 list and drop the logs and slots of safekeepers
status, log_verdict         the state of a log and the verdict on it; archive_status its archive's
archive_repair              put files of an archive back; restored_file fetches them
check/                      the checks of `walkeeper check`
primary/                    attach a PostgreSQL server and detach it
"""
