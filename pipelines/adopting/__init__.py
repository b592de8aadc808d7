"""The parts of `flywheel adopt` as the command runs them: those that make tasks of a site (how is sandbox/adopting's), an ordinary run of
the flywheel on these, and a report of what it gained there.
"""
