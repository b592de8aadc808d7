"""Commands about a home's runs: planning, starting and watching them, where the home stands, and alerts."""
