"""`walkeeper restore`: WAL for restore_command. `entry` starts, `restoring` is the loop."""
