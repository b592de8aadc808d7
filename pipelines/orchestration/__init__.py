"""How stages are run: Dagster's jobs, schedules, sensors, executor and instance, Prefect's server and collection flow, the folder of a
stage's work, and the processes in between.
"""
