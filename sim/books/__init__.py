"""What a finished run says: metrics, ledgers and token times, pure functions over columns."""
