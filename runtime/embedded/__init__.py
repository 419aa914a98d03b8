"""Servers as plain processes on this machine: downloads, processes, ports."""
