"""`walkeeper snapshot`: the published tables, and a consumer's slot from their LSN on."""
