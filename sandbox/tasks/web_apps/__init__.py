"""Tasks in live web applications: real ones from the package registry, crawled for what they can do, with verifiers on their state."""
