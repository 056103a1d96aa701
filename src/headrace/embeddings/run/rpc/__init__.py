"""Calls and messages between the processes of a job, and their signs of life."""
