"""The programs that run beside a run: Dagster's page, the Prefect server, and the guard that ends a program with its starter."""
