"""Reinforcement learning of a policy on live episodes: PPO with a critic, and its alternatives behind one trainer.

config: every setting and where its default comes from. trainer: the rounds. learner: all of a run that one process holds. state: what a
killed run resumes from. metrics: what episodes looked like. clocks: where the time went. In folders: rollouts, the value model, the updates
of the policy, and a run in several processes.

Nothing here opens a sandbox: episodes come through a Collector that is handed in.
"""
