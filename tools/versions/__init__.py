"""Runs tests under other versions of Python, Java, PySpark and Kafka: ``python -m tools.versions``.

A cell is one combination of versions. Its run adds a line to ``cells.jsonl``, from which
``docs/reference/versions.md`` is made.
"""
