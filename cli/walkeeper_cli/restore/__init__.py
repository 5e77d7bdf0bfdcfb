"""`walkeeper restore`: WAL for restore_command. `entry` is the start, `restoring` the loop."""
