"""What the flywheel takes in of annotated runs and recordings, as episodes and rows."""
