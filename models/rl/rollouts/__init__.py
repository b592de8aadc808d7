"""Episodes to learn from: which are asked for (curriculum), played in the background (pool) and kept on disk (log), where they are
forked, and when to give up on those that crash (crash_budget).
"""
