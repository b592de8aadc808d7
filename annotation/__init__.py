"""Annotation: where corrections to the policy come from. For now the scripted annotator, which plays a person by asking the task's oracle.

Imports agent, sandbox and warehouse, never models.
"""
