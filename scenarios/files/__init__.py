"""Read scenario files into validated scenarios, and write scenarios back."""
