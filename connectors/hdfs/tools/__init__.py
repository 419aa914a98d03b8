"""The commands `sluice hdfs` and `sluice files`, and how committables of files are shown."""
