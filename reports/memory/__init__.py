"""Report of what fills a device's memory."""
