"""A policy behind HTTP: any server that speaks OpenAI's interface. config: its settings; dialects: what each kind of server understands;
probe: finding out what one can do; client: requests, retried; engine: the Policy.
"""
