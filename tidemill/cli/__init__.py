"""The ``tidemill`` command."""
