"""Following a running job: lookahead, prefetch and trainers' shares as the cacher decides them."""
