"""The step cost of a replica: compile it, split it by account, explain it and bound it."""
