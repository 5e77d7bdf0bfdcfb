"""The change of members: its steps, the rounds that decide each step, newcomers and spares."""
