"""The checks between the stages: suites and invariants over rows, and whether a critic was good enough to steer."""
