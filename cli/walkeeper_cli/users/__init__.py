"""The users file, as `walkeeper user` writes it."""
