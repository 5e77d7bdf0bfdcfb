"""Changes of a log that grows: window after window, with the transactions that are still open."""
