"""Reinforcement learning of a policy on live episodes: PPO with a critic, or REINFORCE with a per-task baseline.

config: every setting and where its default comes from. curriculum: which episodes a round asks for. advantages, losses: the mathematics,
pure functions. buffer: episodes as tokens. critic: the value model; value_learner: its pretraining and its gate. weighting: which
advantages a round gets. update: one round's gradient steps. spool: finished episodes on disk. state: what a killed run resumes from.
metrics: what episodes looked like. trainer: the rounds.

Nothing here opens a sandbox: episodes come through a Collector that is handed in.
"""
