"""Checkpoint slots: what is stored, published, retained and accepted as lost."""
