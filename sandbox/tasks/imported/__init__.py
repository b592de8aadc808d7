"""Tasks that came from elsewhere: the one schema they are mapped onto, the folder a set of them is kept in, and what runs them."""
