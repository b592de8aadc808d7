"""Grammars: codecs between what a policy writes and the typed actions of sandbox/actions.py. One grammar a file; registry.py names them."""
