"""The page about jobs: its static files, its routes, and the JSON of a job that runs here."""
