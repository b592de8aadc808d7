"""What is annotated, by whom, of which policy: campaigns, their choice of instances, and the work queue."""
