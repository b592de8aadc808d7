"""Versioned tables: what they are (catalogue), reading and writing them (tables), their rows and partitions, and a digest of what a stage
wrote (content). Each has a log and data files, here or in a remote store; beside them are DuckDB over the tables, their pictures, and
repairs.
"""
