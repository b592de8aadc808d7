"""The log of a Delta table: what one commit holds (actions), which commits count (chain, table_log), how a version is opened (opening),
and how data files become a commit (writing, commits). Logs in an object store are warehouse/storage/remote/log.py's.
"""
