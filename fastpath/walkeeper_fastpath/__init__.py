"""The compiled fast path of a commit: optional, and without a rule of its own."""
