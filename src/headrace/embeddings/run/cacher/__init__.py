"""The cacher: it decides on batches ahead, and serves each trainer's parts of them."""
