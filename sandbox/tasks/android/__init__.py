"""Tasks on an Android device: their list, their checks and their oracles."""
