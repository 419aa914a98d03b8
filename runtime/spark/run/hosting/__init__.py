"""A job whose coordinator may be in another process: its description, and a driver without one."""
