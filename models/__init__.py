"""Policies and how they learn: tokenizer, model, generation engine, CT, SFT, PPO, merge, checkpoints.

Imports agent, sandbox and warehouse; reaches live sandboxes only through a Collector handed to it. Dagster is never imported here.
"""
