"""Replay: what tables held at any LSN, and who changed which row, from WAL alone or over a backup.

Engine-free, as walkeeper_history: numpy, pyarrow, and loops that are compiled at the installation.

    redo/       one record on one page (_redo), all pages of chosen relations (store, wal_pass)
    tuples/     pages taken apart: values, versions, and what a snapshot sees
    catalogs/   which tables and types there were at an LSN
    text/, columns/     values as PostgreSQL prints them, and as Arrow has them
    table_at, changes, undo, logged_changes, consistency    what people ask for
"""
