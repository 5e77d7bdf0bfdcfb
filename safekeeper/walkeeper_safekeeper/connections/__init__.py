"""New connections: who gets in, how many do, and which one is next when many arrive."""
