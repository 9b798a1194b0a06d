"""What-if: a scenario and changes to it, compared on the same requests."""
