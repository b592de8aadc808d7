"""Dagster assets, one file per stage of an iteration, with their checks, partitions and resource types.

Domain code lives in the rooms below; a file here says what a stage reads, what it writes and what must hold.
"""
