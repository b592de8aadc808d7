"""Annotation: where corrections to the policy, and recordings of people's own work, come from.

    web        the pages that people work in, and the HTTP interface beneath them
    service    requests for work, proposals, decisions, reviews; what the flywheel takes in
    wire       what travels between the two
    platform   live sandboxes for people
    storage    the database, pictures and uploaded parts
    recording  the recorder on a person's own machine

and scripted.py, the annotator of the quickstart, which plays a person by asking the task's oracle. Imports agent, sandbox and warehouse,
never models.
"""
