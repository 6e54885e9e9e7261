"""Calls and blocks between the driver and the executors, on Arrow Flight.

A server answers calls by name and keeps blocks; a client makes calls and reads and writes blocks::

    server = RpcServer("127.0.0.1", secret, {"echo": lambda body: body})
    server.start()
    client = RpcClient(server.endpoint, secret)
    client.call("echo", b"hello")

A process that calls several servers keeps its clients in a
:class:`~tidemill.common.rpc.client_pool.ClientPool`.

What travels, in terms of Flight:

===========  ========  ==============================  ==========================================
kind         method    to the server                   back
===========  ========  ==============================  ==========================================
``call``     DoAction  type: the name; the body        one result: 32 bytes of proof, the answer
``read``     DoGet     ticket: the name                schema with the proof; batches of bytes
``write``    DoPut     command: the name; batches of   the proof, when the server has the block
                       bytes; how many they were
===========  ========  ==============================  ==========================================

A connection is let in by TLS: both ends show the certificate that follows from the secret. So whatever a
stranger sends is not read at all, and what travels cannot be read or changed on the way: see
:mod:`tidemill.common.rpc.certificate`.

The client signs each request with the secret, for one server and one use; the secret itself never travels.
The proof shows that the answer comes from that start of the server: see :mod:`tidemill.common.rpc.signing`.
The signature of a call covers its body; that of a request for a block does not cover the bytes of the block.

``client`` and ``server`` import gRPC, which does not survive a fork: import them late, in the process that
uses them. ``client_pool`` does so by itself; ``signing``, with the ``Endpoint``, and ``certificate`` need no
gRPC.
"""
