"""Policies that decide which requests are admitted."""
