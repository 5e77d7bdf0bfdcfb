"""The operator's command line.

restore_guard, program        the start of every `walkeeper`, and the commands by name
options, configuration_file   the types of option values, and the sources of these values
commands/                     one thin click function a command, imported when it is named
archive/ … snapshot/          the work of the commands, without click: a folder for each family
"""
