"""A run that trains in several processes: one of them (process), all as rank 0 sees them (ranks), their collectives (process_group), and
the optimizers that they share out.
"""
