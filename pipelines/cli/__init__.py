"""The command `flywheel`: app finds the commands, which are in folders by what they work on; options and terminal are what they share.
`flywheel doctor`, and the commands for plug-ins, stand beside them.
"""
