"""Tasks of the sandbox as Gymnasium environments."""
