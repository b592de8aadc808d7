"""Sessions and tasks that need a browser, a terminal and files at once, on one workspace."""
