"""Tables and types as the catalogs had them at an LSN, replayed as well."""
