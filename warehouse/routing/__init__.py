"""From verdicts to routes to samples: the rule (routes.sql), routing again, why an episode went where it went, and what failed episodes
teach.
"""
