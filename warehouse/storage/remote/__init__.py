"""Tables and checkpoints of a home that keeps them in an object store, and the copies that a home has of them."""
