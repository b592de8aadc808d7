"""Chromium behind the Session protocol: finding and launching it, the DevTools protocol over a pipe, and sessions with and without
control over frames and time. Which pages and tasks run in it is said by a PageTask (sandbox/tasks/page_task.py).
"""
