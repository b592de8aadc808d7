"""Our policy server: OpenAI's routes, and a few of our own, over the embedded engine. The client's side is models/http/engine.py."""
