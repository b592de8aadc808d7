"""The agent: grammars over the action space, the prompt builder with its memory, the episode loop, and the Policy and Collector protocols.

Imports sandbox and warehouse. Knows nothing of torch: policies are handed in.
"""
