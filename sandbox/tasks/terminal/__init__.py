"""Tasks in a terminal: written ones, a module a length, and generated ones."""
