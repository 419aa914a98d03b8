"""Rows as bytes: the codec of keyed state, the text form of schemas, and expiry times."""
