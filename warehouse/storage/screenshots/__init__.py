"""Pictures: how they are opened safely (pictures), read by their ids (stored), and found missing (lost)."""
