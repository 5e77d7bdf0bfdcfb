"""The operator's command line: options and commands above what other packages do.

program                       the start of every `walkeeper`, and the commands by name
options, configuration_file   the types of option values, and the sources of these values
commands/                     one thin click function a command, imported when it is named
archive/, history/, snapshot/ the parts of three commands that only a command line needs
"""
