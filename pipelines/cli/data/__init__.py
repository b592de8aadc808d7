"""Commands that read the tables of a home, change them, or bring data in."""
