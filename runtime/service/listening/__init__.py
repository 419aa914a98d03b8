"""Where an HTTP service listens: its settings, its ports and its certificate."""
