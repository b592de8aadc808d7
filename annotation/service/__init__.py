"""Layer 2 of annotation: requests for work, proposals, decisions, reviews. Knows nothing of HTTP."""
