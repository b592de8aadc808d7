"""Sessions over HTTP: leases on the sessions of a pool, a live view of them, metrics. The other end is sandbox/server/client.py."""
