"""The operator's command line.

__main__, options, configuration_file   the program, what options may hold, where values come from
commands/                               one thin click function a command, imported when it is named
create, attach, detach, status          what the commands do, without click
"""
