"""Other people's environments as task sources: Gymnasium's, and servers that speak OpenEnv. What both share is adapted_session.py."""
