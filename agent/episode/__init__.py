"""An episode: what it is (episode), the loop that runs one (loop), many at once (pool_collector, concurrency), what is kept of it on disk
(log) and as rows (rows), and the same actions again (replay). collector is the protocol through which episodes are asked for.
"""
