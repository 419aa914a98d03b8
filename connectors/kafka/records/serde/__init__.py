"""Deserializers and serializers of keys and values: JSON and Avro."""
