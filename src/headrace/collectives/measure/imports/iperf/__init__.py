"""Import of iperf3 results: `read` parses a file, `profile` combines files into a profile."""
