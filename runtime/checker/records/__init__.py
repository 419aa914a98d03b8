"""The data of the checker: records, payloads and their histories."""
