"""Data and tasks of one's own, into the warehouse: a module a format (agentnet, mind2web, sharegpt, general, tasks), reading, screening,
and the rows and the report that come of it.
"""
