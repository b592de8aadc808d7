"""Kinds of models: their tokenizers, chat templates, shapes and vision inputs, and which kind a folder holds (registry)."""
