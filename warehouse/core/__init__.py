"""What everything else stands on: errors, the folders of a home, identity by content, locks, processes, durable files, and what the machine
refuses. Nothing here knows of tables.
"""
