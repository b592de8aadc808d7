"""What a browser can reach: its network namespace and loopback, the proxy that is its only way out, the policy that the proxy asks, and
the folders and the user that it runs with.
"""
