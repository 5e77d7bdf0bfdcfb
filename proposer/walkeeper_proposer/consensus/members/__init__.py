"""The change of members: what follows a configuration, who decides it, newcomers and spares."""
