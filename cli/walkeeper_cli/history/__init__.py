"""`walkeeper history`: the work of its commands, with walkeeper_history and walkeeper_replay."""
