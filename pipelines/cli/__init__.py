"""The command `flywheel`: app finds the commands, each in a module of its own; options, terminal and live are what they share."""
