"""Protobuf records of a registry: descriptors, values as Arrow structs, and both directions."""
