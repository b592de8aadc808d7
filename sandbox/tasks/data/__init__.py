"""What generated tasks of a workspace are about: drawn words, files and tables, and the questions that are asked of them. The tasks are
those of sandbox/tasks/terminal and sandbox/tasks/hybrid.
"""
