"""Verdicts on episodes: the quality filters (SQL, and what SQL cannot do), their settings and rows, and the expectations on tables."""
