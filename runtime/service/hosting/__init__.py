"""Drivers that host regions for a coordinator in another process: messages, link and relay."""
