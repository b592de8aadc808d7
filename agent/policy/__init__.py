"""Who acts: the Policy protocol, prompts of many episodes in one batch (batcher), and who decides at a step (action_source)."""
