"""Work on a Ray cluster: episodes on its nodes, and stages as its jobs. `ray` is imported here only, and only when it is asked for."""
