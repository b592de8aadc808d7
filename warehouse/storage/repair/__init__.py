"""What is damaged (integrity), how it is repaired (repairing, stand_ins), and how a table is put back to an older version (restoring)."""
