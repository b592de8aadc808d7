"""A policy behind HTTP: any server that speaks OpenAI's interface. config: its settings; dialects: what may differ between servers; routes:
how they are asked and read; kinds: which server understands what; probe: finding out what one can do; client: requests, retried; affinity:
which of several servers is asked; servers: those that an engine starts for itself; engine: the Policy.
"""
