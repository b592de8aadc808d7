"""Whether what was typed is secret."""
