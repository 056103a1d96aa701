"""A job's processes: started, watched, started again; what they did."""
