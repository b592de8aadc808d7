"""The work of one stage: its folder, the runner that starts its process, whether its finished result still holds, its progress, and the
Prefect flow of a collection.
"""
