"""Who is asking, and what they may do: accounts, invitations, tokens, passwords."""
