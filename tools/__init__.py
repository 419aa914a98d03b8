"""Programs for work on the project itself; the product does not import them."""
