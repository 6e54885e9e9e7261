"""The file sink: staging, the journal, the manifest."""
