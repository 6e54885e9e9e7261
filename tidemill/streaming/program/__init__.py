"""The program of a stream on disk: pickled at its first start, recovered, upgraded."""
