"""What hands did: events of a system's keyboard and pointer, and the actions that they make up."""
