"""One round's update of the policy: episodes as tokens (buffer), their rewards and advantages (shaping, advantages, weighting), the
losses, and the gradient steps.
"""
