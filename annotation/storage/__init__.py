"""Layer 4 of annotation: what is kept, in a database and a folder of pictures. Knows nothing of pages, sandboxes or policies."""
