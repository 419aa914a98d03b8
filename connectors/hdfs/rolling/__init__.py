"""Rolling files: rows of many epochs collected into few files."""
