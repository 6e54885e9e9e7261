"""The receivers that Tidemill brings along, one protocol each."""
