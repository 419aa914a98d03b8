"""The continuous engine: tasks that read, apply and write without a pause between epochs."""
