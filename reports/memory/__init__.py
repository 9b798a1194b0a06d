"""What fills a device, for people."""
