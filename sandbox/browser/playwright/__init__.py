"""Pages and windows driven by Playwright: the independent check of our own."""
