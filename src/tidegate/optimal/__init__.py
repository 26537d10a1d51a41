"""The best any policy could have done, on archived streams."""
