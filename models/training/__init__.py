"""What CT, SFT and RL share: batches and packing, the forward pass, adapters, metrics, processes that train together, and estimates of
memory and time.
"""
