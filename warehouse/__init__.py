"""The bottom room: records, the table catalogue, versioned tables, DuckDB, blobs, lineage and the error root.

Nothing here knows of browsers, models or Dagster. Every other room may import this one; this one imports none of them.
"""
