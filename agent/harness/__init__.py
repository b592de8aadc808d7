"""Harnesses: agent programs that are started once an episode, with a leased session and an address at which a model answers. What one is
(harness), how a program ends with all that it started (supervisor), the known ones (registry), what it gets of a session that is not a
browser (endpoint), one episode of it (runner).
"""
