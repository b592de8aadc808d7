"""Pages driven by the Chrome DevTools Protocol: the connection, the running browser, and pages with control over frames and time
(beginframe), in real time with it (realtime), and without it (plain).
"""
