"""The web page of a daemon: three files without any other, which fetch /status of their server."""
