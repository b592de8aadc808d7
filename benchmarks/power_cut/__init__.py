"""Power cuts: a disk whose writes and flushes are logged, the states that a cut could leave on it, and what Flywheel makes of them."""
