"""What a recorded workload looks like: terminal text and page."""
