"""What a prefix cache drops when blocks are needed."""
