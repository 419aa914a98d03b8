"""The name of a split."""

__all__ = ["SplitKey"]

SplitKey = tuple[str, str, int]
"""Source id, topic and partition."""
