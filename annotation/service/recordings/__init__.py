"""Recordings on the server: what to record, uploads and their checks, review, and a trial in a sandbox."""
