"""How stages are run by Dagster and Prefect. Here: the Dagster instance, its jobs, schedules and sensors, and what a change of the tables
reports to it. In folders: runs, the work of a stage, the programs that run beside them, and alerts.
"""
