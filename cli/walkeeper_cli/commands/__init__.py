"""One module a command: flags to a frozen settings object, then one call. Imports stay light."""
