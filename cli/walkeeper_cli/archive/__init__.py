"""`walkeeper archive`: what is in an archive, what of it is still wanted, and what may go."""
