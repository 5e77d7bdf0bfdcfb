"""Values as PostgreSQL prints them. Pure."""
