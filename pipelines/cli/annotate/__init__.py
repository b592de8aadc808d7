"""`flywheel annotate …`: the server and its accounts (commands), campaigns, and lists of finished runs and of recordings."""
