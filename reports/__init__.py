"""What a result folder says: the terminal summary, the figures and the HTML page. Runs nothing."""
