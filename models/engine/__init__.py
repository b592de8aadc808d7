"""Generation in this process: continuous batching over a shared key/value cache, one scheduler for every kind of model. The engine that
makes a Policy of it is models/engine/embedded.py."""
