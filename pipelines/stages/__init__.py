"""The subprocesses that do the heavy work of the stages, one module a kind of request. Here torch, browsers and Prefect are imported.

`python -m pipelines.stages FOLDER` reads FOLDER/request.json and leaves result.json or error.json; Dagster starts it through Pipes, and a
person may start it by hand on the same folder.
"""
