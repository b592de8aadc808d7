"""Versioned tables: their description (catalogue), rows, files, logs and chains of commits, checks and repairs, and DuckDB over them."""
