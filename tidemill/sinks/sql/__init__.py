"""Tables of databases as a sink: each batch in one transaction, together with a record of its id."""
