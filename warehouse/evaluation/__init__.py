"""How good a policy is, and how sure we are of it: evaluations, intervals, solve rates, novelty, judges beside verifiers, and what a
choice may read.
"""
