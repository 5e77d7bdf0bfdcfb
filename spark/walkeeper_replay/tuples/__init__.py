"""What is on pages: tuples taken apart, values whole again, and who sees which version."""
