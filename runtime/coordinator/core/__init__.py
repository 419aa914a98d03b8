"""The pure core: events in, actions out; checkpoints and failures."""
