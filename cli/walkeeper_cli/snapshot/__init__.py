"""`walkeeper snapshot`: the published tables, and a consumer's slot that goes on there."""
