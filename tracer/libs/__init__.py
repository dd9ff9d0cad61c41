"""Functions of user libraries: which are watched, where they are, what their calls mean."""
