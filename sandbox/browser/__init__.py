"""Chromium behind the Session protocol: finding and launching it, what a page is to a session, and sessions of pages. In folders: pages
over the DevTools protocol, the windows of web sessions, the same by Playwright, and what a browser can reach. Which pages and tasks run in
it is said by a PageTask (sandbox/tasks/page_task.py).
"""
