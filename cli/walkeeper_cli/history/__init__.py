"""`walkeeper history`: what the commands do with walkeeper_history and walkeeper_replay."""
