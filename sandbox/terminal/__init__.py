"""Terminal, files and tools of a session: the jail that holds them, what runs in it, and tasks that are solved with them."""
