"""`walkeeper demo`: what walkeeper promises, shown on a real PostgreSQL that is made for it."""
