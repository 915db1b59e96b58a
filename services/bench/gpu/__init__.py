"""The first hour on a GPU: checks and figures, each in a process of its own."""
