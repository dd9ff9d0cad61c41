"""Measures each budget of the project against an untraced control."""
