"""The continuous engine: tasks that read and write with no pause between epochs but a flush."""
