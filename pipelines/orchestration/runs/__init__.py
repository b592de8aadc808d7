"""A Dagster run in a home: its process, launcher and executor, the lock that keeps two apart, its profile, whether it lives and why it
failed, and the server from which its steps are forked.
"""
