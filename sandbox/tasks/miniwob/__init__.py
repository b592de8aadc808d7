"""MiniWoB++ as a task source: its pages from the `miniwob` package, which of them are used and how, and oracles that solve them."""
