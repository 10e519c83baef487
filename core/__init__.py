"""What a snapshot is."""
