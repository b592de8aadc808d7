"""Layer 3 of annotation: live sandboxes for people, on lease from a pool."""
