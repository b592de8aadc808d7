"""Dagster assets, one file per stage of an iteration. In folders: the settings of a profile, the gates between stages, iterations and their
keys, what the assets of all stages share, and which tasks are played.

Domain code lives in the rooms below; a file here says what a stage reads, what it writes and what must hold.
"""
