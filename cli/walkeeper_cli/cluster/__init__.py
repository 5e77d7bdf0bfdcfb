"""The commands that look at a log or change it: create, status, replace, settle, up."""
