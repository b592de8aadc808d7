"""Tasks: what one is, where they come from (sources), which instances are kept for evaluation (reserved, contents), how good a generator's
supply is, and proof that oracles solve them. Each folder is a source, with its pages, its data and its oracles; data is what
the terminal's and the hybrid tasks share.
"""
