"""File systems for checkpoints: local, Hadoop by JVM, WebHDFS."""
