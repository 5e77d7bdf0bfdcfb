"""The reference pager: a log's pages, of any LSN within a bounded history.

received_wal     the log as it came, in files that survive a crash
block_index      the records of a segment that refer to a block
page_redo        a page brought from one LSN to another, or the reason why it cannot be
page_table       pages as they are at the horizon, over a base backup (SQLite)
pager            the three together: page(relation, fork, block, LSN)
following        the log from one safekeeper after another
"""
