"""R23: the comparison of the branch of a server with the branch of a log."""
