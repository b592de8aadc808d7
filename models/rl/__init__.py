"""Reinforcement learning of a policy on live episodes: PPO with a critic, and its alternatives behind one trainer.

config: every setting and where its default comes from. curriculum: which episodes are asked for, and when. advantages, losses,
off_policy, shaping: the mathematics, pure functions. buffer: episodes as tokens. critic: the value model; value_learner: its pretraining
and its gate. weighting: which advantages a batch gets. update: its gradient steps; counters: their sums and metrics. replay: supervised
samples beside them. rollouts: episodes that run in the background, and batches of finished ones. rollout_log: requests, episodes and
batches on disk. crash_budget: when to give up on crashing episodes. state: what a killed run resumes from. metrics: what episodes looked
like. clocks: where the time went. learner: all of it that one process holds. process_group: collectives of several processes; ranks:
starts and stops those of ranks 1 and up; process: one of them; sharded: optimizers that they share out. trainer: the rounds.

Nothing here opens a sandbox: episodes come through a Collector that is handed in.
"""
