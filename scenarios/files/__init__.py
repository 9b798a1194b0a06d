"""Files that people write, read into validated scenarios, and scenarios written back."""
