"""The recorder of a whole desktop, and its parts for this system."""
