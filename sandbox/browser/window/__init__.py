"""A web session's window: its tabs and their frames, its dialogs, downloads and uploads, and the order in which its requests are
answered.
"""
