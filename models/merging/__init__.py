"""Ways to merge checkpoints: settings, checks, streaming, and one file a method. Entered through models/merging/merge.py. No torch."""
