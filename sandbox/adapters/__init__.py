"""Other people's environments as task sources. What they share is adapted_session.py and adapted_source.py."""
