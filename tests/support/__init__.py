"""Parts that many tests use: servers, disks that fail, stages, clocks and makers of WAL."""
