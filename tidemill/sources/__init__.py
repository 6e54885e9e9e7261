"""Pull input: everything that has offsets and can be read again, one file each."""
