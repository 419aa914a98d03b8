"""The Job that users define and run, and `sluice job`."""
