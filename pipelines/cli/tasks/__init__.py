"""Commands about tasks and the sandboxes in which they are played."""
