"""A logical log's part of it: from pgoutput's messages to entries, and LSNs back. No I/O either."""
