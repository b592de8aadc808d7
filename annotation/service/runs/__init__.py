"""Annotated runs while they are live: the policy proposes, a person decides, and each step is stored."""
