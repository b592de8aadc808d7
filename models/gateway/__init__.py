"""The gateway's server: OpenAI's and Anthropic's interfaces in front of a policy server, and a record of what passes. What is recorded is
agent/gateway's."""
