"""Following the network while a job runs: watch, tune the masters, plan again, swap the plan."""
