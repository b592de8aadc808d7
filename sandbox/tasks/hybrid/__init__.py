"""Tasks that need a page and a terminal on one workspace: written ones, generated ones, and their pages."""
