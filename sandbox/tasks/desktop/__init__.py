"""Tasks on a desktop: their list and what makes an instance of each."""
