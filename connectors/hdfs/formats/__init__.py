"""File formats that a Python worker writes without a JVM, and that Spark's readers take."""
