"""Sandboxes: sessions on live environments, the pool that keeps them alive, tasks, verifiers and oracles.

Imports the warehouse only. What a policy is, and how it is prompted, is the business of `agent`.
"""
