"""Models that judge finished episodes. judge: the protocol, and asking a policy; orm: the generative outcome reward model; reference: a
judge that knows the right answer; verdict_scores: the probability of the verdict's word. What is asked and read is
agent/judging/prompt.py."""
