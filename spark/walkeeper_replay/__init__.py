"""Replay: what tables held at any LSN, and who changed which row, from WAL alone or over a backup.

Engine-free, as walkeeper_history: numpy, pyarrow, and numba for the redo of pages (without it the
same code runs interpreted). `heap_redo` applies one record to one page, `replayer` a whole plan to
the pages of chosen relations, `catalogs` names relations and types, `rows` makes columns of tuples.
"""
