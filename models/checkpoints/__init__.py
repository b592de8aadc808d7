"""Checkpoints on disk: what one says of itself, models taken in from elsewhere, which file is what, and where tensors lie in them."""
