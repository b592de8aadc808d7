"""Layer 1 of annotation: the pages that people work in, and the HTTP interface beneath them."""
