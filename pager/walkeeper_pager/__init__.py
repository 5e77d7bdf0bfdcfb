"""The reference pager: it serves the pages of a log as of any LSN within a bounded history.

received_wal     the received WAL, in files that survive a crash
base_pages       the pages of the base backup
page_table       pages as they are at the horizon, over the base backup (SQLite)
block_index      the records of a segment that refer to a block
page_redo        a page brought from one LSN to another, or the reason why it cannot be
folding          a segment's records put into the page table, as the horizon passes them
pager            all of these together: page(place, block, LSN)
following        the log from one safekeeper after another
page_requests    pages over HTTP, page_names their names and errors
pager_daemon     the threads and the event loop, pager_metrics their figures
"""
