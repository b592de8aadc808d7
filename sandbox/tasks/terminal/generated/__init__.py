"""Tasks that are composed: operations on tables, logs, records and trees of files, chained by a seed, with verifiers and oracles that
follow from the chain."""
