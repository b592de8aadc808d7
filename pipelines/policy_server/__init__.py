"""A policy server that serves a home's live release. The server itself is models/server."""
