"""The cost and gain of each setting."""
