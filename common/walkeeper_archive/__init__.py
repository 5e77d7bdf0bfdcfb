"""The archive: every committed segment in a directory or an object store, verified.

    layout              names of objects and what they mean. Pure
    receipt             the checksum that is kept beside an object. Pure
    object_store        the port; open_store: the store that a URL means (local_store, cloud_store)
    packing             zstd or not
    sealing             encryption of an object; own_keys: the keys of this process
    archive             Archive: put a file, fetch a file, list
    archive_contents    the result of a listing: runs, gaps, forks, the end. Pure
    timeline_extent     how far a timeline reaches, also where files are missing
    log_kind            physical or logical, as the bytes of one file show it
    verification        every byte read and compared
    pruning             the objects that may be deleted, and in which order. Pure

Everything that does I/O blocks; daemons call it on threads of their own.
"""
