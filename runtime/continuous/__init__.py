"""The continuous engine's protocol between long tasks and the coordinator."""
