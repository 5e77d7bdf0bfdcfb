"""The process itself: its event loop, threads, descriptors, memory, version and output."""
