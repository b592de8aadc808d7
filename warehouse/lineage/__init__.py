"""Where everything came from: relations as data, walks back and forward, drawings of them, and the registry of checkpoints."""
