"""`sluice checkpoint`: reads checkpoints without the job that wrote them."""
