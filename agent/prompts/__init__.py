"""What a policy reads: the prompt builder, the standing texts of the chat grammars, and what the agent remembers of its episode."""
