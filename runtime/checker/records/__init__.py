"""What the checker compares: records, payloads and their histories."""
