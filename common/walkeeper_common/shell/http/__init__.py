"""`--http` of a daemon: its endpoints, who may ask, its web page, and its audit."""
