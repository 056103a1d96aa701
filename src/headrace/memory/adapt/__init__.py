"""Plans that follow a job: made for its model, kept, and changed with its budget."""
