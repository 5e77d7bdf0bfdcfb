"""`walkeeper demo`: proof of walkeeper's promises on a real PostgreSQL that the command makes."""
