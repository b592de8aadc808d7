"""Reinforcement learning of a policy on live episodes: PPO with a critic, and its alternatives behind one trainer.

config: every setting and where its default comes from. curriculum: which episodes are asked for, and when. advantages, losses,
off_policy, shaping: the mathematics, pure functions. buffer: episodes as tokens. critic: the value model; value_learner: its pretraining
and its gate. weighting: which advantages a batch gets. update: its gradient steps, counted by tally. replay: supervised samples beside
them. rollouts: episodes that run in the background, and batches of finished ones. spool: requests, episodes and batches on disk. state:
what a killed run resumes from. metrics: what episodes looked like. clocks: where the time went. learner: all of it that one process holds.
gang: what several processes compute together; followers: those beside the one that leads; process: one of them. trainer: the batches.

Nothing here opens a sandbox: episodes come through a Collector that is handed in.
"""
