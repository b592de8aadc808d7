"""Recordings, wherever they are: their form (bundle), what people agree to, what is private in a text, and how they become samples."""
