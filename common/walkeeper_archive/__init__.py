"""The archive: every committed segment in a directory or an object store, verified.

    layout              names of objects and what they mean. Pure
    receipt             the checksum that lies beside an object. Pure
    object_store        the port; opening: which store a URL means (local_store, cloud_store)
    packing             zstd or not
    archive             Archive: put a file, fetch a file, list
    contents            what a listing amounts to: runs, gaps, forks, the end. Pure
    verification        every byte read and compared
    pruning             what may go, and in which order. Pure

Everything that does I/O blocks; daemons call it on threads of their own.
"""
