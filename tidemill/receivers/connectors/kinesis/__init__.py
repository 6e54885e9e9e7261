"""A receiver for Amazon Kinesis Data Streams, in the place of the Kinesis Client Library."""
