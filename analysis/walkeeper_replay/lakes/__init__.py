"""Tables of a lake: as sinks of changes, or as mirrors of tables by their keys."""
