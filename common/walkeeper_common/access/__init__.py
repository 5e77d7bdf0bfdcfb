"""The identity of a connection and its rights: roles, passwords and the rules of HTTP."""
