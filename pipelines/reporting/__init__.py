"""The report: what the iterations did, as HTML files. build: which pages there are; overview, gains, runs, episodes: what they say."""
