"""What alerts are about (freshness, regressions), the sensors that look for it, and the channels through which an alert is sent."""
