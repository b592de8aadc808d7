"""What fuzz_doors.py tries: each door of ours, and how it is tried."""
