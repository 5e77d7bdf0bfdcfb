"""Take the tuples of pages apart, complete their values, and find the visible versions."""
