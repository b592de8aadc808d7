"""The second half of `flywheel adopt`: an ordinary run of the flywheel on an adopted site, and a report of what it gained there. How a site
becomes tasks is sandbox/adopting.
"""
