"""The file format of `_metadata`: container, schema, kinds of committables."""
