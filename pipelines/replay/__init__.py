"""`flywheel replay`: an episode shown again, in the terminal, on a page or as a film. What a replay is, is agent/episode/replay.py."""
