"""Text that an operator reads: printable names, times, hidden secrets, severity, zones."""
