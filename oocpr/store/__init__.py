"""What is on disk, and only that."""
