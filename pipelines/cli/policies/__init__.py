"""Commands about policies: serving them, merging and comparing them, releasing them, and finding out what made one worse."""
