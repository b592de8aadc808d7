"""A recording after its session: its manifest, what its person looks at and changes, and its upload."""
