"""Calls and blocks between the driver and the executors, on Arrow Flight.

A server answers calls by name and keeps blocks; a client makes calls and reads and writes blocks::

    server = RpcServer("127.0.0.1", secret, {"echo": lambda body: body})
    server.start()
    client = RpcClient(server.endpoint, secret)
    client.call("echo", b"hello")

What travels, in terms of Flight:

===========  ========  ==============================  ==========================================
kind         method    to the server                   back
===========  ========  ==============================  ==========================================
``call``     DoAction  type: the name; the body        one result: 32 bytes of proof, the answer
``read``     DoGet     ticket: the name                schema with the proof; batches of bytes
``write``    DoPut     command: the name; batches of   the proof, when the block has been taken
                       bytes; how many they were
===========  ========  ==============================  ==========================================

Each request is signed with the secret, which itself never travels, for one server and one use; the
proof shows that the answer comes from that server: see :mod:`tidemill.common.rpc.signing`. Calls are
signed together with their bodies, requests for blocks without the bytes of the block, and nothing is
encrypted: this keeps out whoever can connect, not whoever can read and change packets on the way.

``client`` and ``server`` import gRPC, which does not survive a fork: import them in the process that uses
them, and late. :mod:`tidemill.common.rpc.signing`, with the ``Endpoint``, does without gRPC.
"""
