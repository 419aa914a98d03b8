"""`sluice verify`: compares the input of a pipeline with its output."""
