"""Dagster assets, one file a stage of the wheel, with their checks, partitions and resource types.

Domain code lives in the rooms below; a file here says what a stage reads, what it writes and what must hold.
"""
