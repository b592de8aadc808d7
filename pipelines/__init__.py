"""The composition root: Dagster definitions, jobs, schedules, sensors; the Prefect collection flow; the trainer entry points; the CLI.

Only this room knows every other one.
"""
