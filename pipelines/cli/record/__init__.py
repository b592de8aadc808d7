"""`flywheel record …`: the commands, their options, and recordings while they are made (sessions)."""
