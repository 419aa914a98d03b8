"""What the coordinator commits after a decision, and repairs."""
