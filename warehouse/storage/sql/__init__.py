"""DuckDB over the tables: every table as a view (query, views), and whole tables read by its Parquet reader (scan, file_sql)."""
