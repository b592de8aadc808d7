"""Actions as people write them: completion at the cursor, clicks on the picture, and why a text cannot be read. Pure functions."""
