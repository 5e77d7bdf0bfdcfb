"""Replay: what tables held at any LSN, and who changed which row, from WAL alone or over a backup.

Engine-free, as walkeeper_history: numpy, pyarrow, and loops that are compiled at the installation.

    redo/       one record on one page (_redo), all pages of chosen relations (store, wal_pass)
    tuples/     pages taken apart: values, versions, and what a snapshot sees
    catalogs/   which tables and types there were at an LSN
    text/, columns/     values as PostgreSQL prints them, and as Arrow has them
    table_at, consistency    a table as of an LSN, and a check of redo
    changes/    changes of rows in a range of WAL, or of a logical log, and SQL that undoes them
    streams/    changes of a log that grows, window after window
    lakes/      tables of a lake: sinks of changes, and mirrors
"""
