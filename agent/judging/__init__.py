"""Judging a finished episode: what a model is asked and how its answer is read (prompt), what judges are taught by and measured on
(samples, injected_claims), and the words that reports are made of (reports).
"""
