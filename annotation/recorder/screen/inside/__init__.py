"""What runs under the Python of the distribution, which has the accessibility library."""
