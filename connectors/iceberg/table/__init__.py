"""Opens catalogs, tables and the store of a table; translates client errors."""
