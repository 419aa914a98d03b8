"""The coordinator in a process of its own: region hosts, the leader, its command."""
