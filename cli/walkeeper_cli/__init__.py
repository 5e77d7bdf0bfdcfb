"""The operator's command line.

restore_guard, program        where every `walkeeper` starts, and the commands by name
options, configuration_file   what options may hold, and where their values come from
commands/                     one thin click function a command, imported when it is named
archive/ … snapshot/          what commands do, without click: a folder for each family
"""
