"""On an executor: the receivers that come with Tidemill, one for each protocol."""
