"""From records to the rows of each table, and what of a query's filters makes reading shorter."""
