"""Run the accuracy study; see `study`."""

from benchmarks.compression.accuracy.study import main

if __name__ == "__main__":
    main()
