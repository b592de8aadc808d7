"""What every HTTP server of ours is run with: sockets, limits of bodies, names, origins and tokens."""
