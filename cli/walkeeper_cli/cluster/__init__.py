"""A log and its safekeepers, asked and changed: create, status, replace, settle, up."""
