"""The continuous engine: tasks that read, apply and write with no pause between epochs but their flush."""
