"""A log's files in its folder, and the recovery of its end. Over a Disk port, simulated or real."""
