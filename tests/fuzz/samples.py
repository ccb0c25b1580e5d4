"""What good clients say to each listener: what is not quite this is what the fuzzer says."""

from __future__ import annotations

import struct

from penstock.callers.carried import Carried
from penstock.dory import encode
from penstock.peers.preface import NONCE_BYTES, VERSION, Challenge, Hello, Refused, Visit, Welcome, written


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _bodies(*bodies: bytes) -> bytes:
    return _sized(struct.pack(">I", len(bodies)) + b"".join(_sized(body) for body in bodies))


def _request(line: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"{line} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _chunked(line: str, *chunks: bytes) -> bytes:
    head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


ID = b"0000000000000001"

NSQ_TCP = (
    b"  V2PUB t\n" + _sized(b"body") + b"PUB t\n" + _sized(b"other"),
    b"  V2MPUB t\n" + _bodies(b"a", b"bb", b"") + b"NOP\n",
    b"  V2DPUB t 100\n" + _sized(b"later"),
    b"  V2SUB t c\nRDY 5\nFIN " + ID + b"\nREQ " + ID + b" 0\nTOUCH " + ID + b"\nCLS\n",
    b"  V2IDENTIFY\n" + _sized(b'{"client_id":"c","feature_negotiation":true,"heartbeat_interval":1000}') + b"NOP\n",
    b"  V2IDENTIFY\n" + _sized(b'{"feature_negotiation":true,"snappy":true}'),
    b"  V2IDENTIFY\n" + _sized(b'{"feature_negotiation":true,"deflate":true,"deflate_level":3}'),
    b"  V2IDENTIFY\n" + _sized(b'{"feature_negotiation":true,"tls_v1":true,"extend_support":true}'),
    b"  V2AUTH\n" + _sized(b"secret"),
    b"  V2PUB_EXT e\n" + _sized(struct.pack(">H", 13) + b'{"##tag":"a"}' + b"body"),
    b"  V2MPUB_EXT e\n" + _bodies(struct.pack(">H", 2) + b"{}" + b"body"),
    b"  V2PUB_TRACE t\n" + _sized(struct.pack(">Q", 7) + b"body"),
    b"  V2SUB t c 0 tag\nRDY 1\n",
    b"  V2INTERNAL_CREATE_TOPIC made 0\n",
)

NSQ_HTTP = (
    _request("POST /pub?topic=t", b"body"),
    _request("POST /pub?topic=t&defer=100", b"body") * 2,
    _request("POST /mpub?topic=t", b"a\nb\n\nc"),
    _request("POST /mpub?topic=t&binary=true", _bodies(b"a", b"b")),
    _request("GET /stats?format=json&topic=t&channel=c&include_clients=true"),
    _request("POST /topic/create?topic=t") + _request("POST /channel/create?topic=t&channel=c"),
    _request("POST /channel/empty?topic=t&channel=c") + _request("POST /topic/pause?topic=t"),
    _request("GET /ping") + _request("GET /info"),
    _request("PUT /config/log_level", b'"debug"'),
    _request("POST /pub_ext?topic=e&ext=%7B%22a%22:%22b%22%7D", b"body"),
    _chunked("POST /pub?topic=t", b"some", b"more"),
    _request("POST /pub?topic=t", b"body", "Expect: 100-continue", "Connection: close"),
)

LOOKUP_TCP = (
    b"  V1IDENTIFY\n"
    + _sized(b'{"broadcast_address":"n","tcp_port":4150,"http_port":4151,"version":"1","hostname":"h"}')
    + b"REGISTER t c\nPING\nUNREGISTER t c\n",
    b"  V1IDENTIFY\n" + _sized(b"{}") + b"REGISTER t\n",
    b"  V1PING\n",
)

LOOKUP_HTTP = (
    _request("GET /lookup?topic=t&metainfo=true"),
    _request("GET /topics") + _request("GET /channels?topic=t") + _request("GET /nodes"),
    _request("POST /topic/create?topic=t") + _request("POST /channel/delete?topic=t&channel=c"),
    _request("POST /topic/tombstone?topic=t&node=n:4151"),
    _request("GET /ping") + _request("GET /info") + _request("GET /debug"),
)

_JSON = "Content-Type: application/json"
_T = "/api/v1/topics/t"
_S = f"{_T}/subscriptions/s"

API = (
    _request(f"POST {_T}/messages?create=true", b'{"body":"a","key":"k","headers":{"a":"b"},"due":"2s"}\n{"body":"b"}'),
    _request("POST /api/v1/topics", b'{"name":"new","settings":{"shards":2}}', _JSON),
    _request(f"PATCH {_T}", b'{"settings":{"retention":"1h","durability":"fsync"}}', _JSON),
    _request("GET /api/v1/topics?limit=10") + _request(f"GET {_T}") + _request(f"POST {_T}/pause"),
    _request(f"GET {_T}/messages?shard=0&offset=0&limit=5"),
    _request(f"POST {_T}/subscriptions", b'{"name":"s","settings":{"lease":"30s","order":"key"}}', _JSON),
    _request(f"PATCH {_S}", b'{"settings":{"max_attempts":3,"filter":"tag == \'a\'"}}', _JSON),
    _request(f"POST {_S}/lease", b'{"max":3,"holder":"h","lease":"10s"}', _JSON),
    _request(f"POST {_S}/ack", b'{"receipts":["0000000000000001.1"]}', _JSON),
    _request(f"POST {_S}/extend", b'{"receipts":["0000000000000001.1"],"lease":"5s"}', _JSON),
    _request(f"POST {_S}/seek", b'{"to":"earliest"}', _JSON) + _request(f"GET {_S}/holders"),
    _request("GET /metrics") + _request("GET /readyz") + _request("GET /api/v1/ledger?reason=bad_request"),
    _request("PUT /api/v1/routing", b'{"traffic_types":["a","b"]}', _JSON),
    _request("POST /api/v1/routing/test", b'{"filter":{"traffic":["a"]},"message":{"tag":"a"}}', _JSON),
    _request("GET /api/v1/openapi.json") + _request("GET /") + _request("GET /api/v1/peers"),
)

DYNAMIQ = (
    _request("PUT /v1/queues/t") + _request("PUT /v1/queues/t/message", b"hello") + _request("GET /v1/queues/t"),
    _request("GET /v1/queues/t/messages/10") + _request("DELETE /v1/queues/t/messages/1,2,x"),
    _request("PATCH /v1/queues/t", b'{"visibility_timeout":2.5,"max_partitions":7,"compressed_messages":true}'),
    _request("PUT /topics/t") + _request("PUT /topics/t/queues/t") + _request("PUT /topics/t/message", b"x"),
    _request("GET /queues/t/message/1%202") + _request("DELETE /queues/t/message/1") + _request("DELETE /queue/t"),
    _request("GET /v1/status/servers") + _request("GET /v1/status/partitionrange/") + _request("DELETE /v1/topics/t"),
)

#: HTTP/2's beginning, settings and a headers frame: what is above is pyarrow's to read.
FLIGHT = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41",
    b"GET / HTTP/1.1\r\n\r\n",
)

#: What the Flight documents are: commands of descriptors, and the bodies of actions.
COMMANDS = (
    b'{"publish":{"topic":"t","create":true,"shard":0,"source":"x"}}',
    b'{"stage":{"query":"q","batch":1,"attempt":"a","topic":"t","home":0}}',
    b'{"subscribe":{"topic":"t","subscription":"s","credit":5,"columns":["body"]}}',
    b'{"topic":"t"}',
    b'{"name":"t","seconds":5,"offsets":[[0,1]],"query":"q","batch":1,"attempts":["a"]}',
    b'{"topic":"t","subscription":"s","to":"earliest","time_ns":5}',
)

_FORM = "Content-Type: application/x-www-form-urlencoded"
_URL = b'"QueueUrl":"http://localhost/000000000000/t"'


def _target(operation: str, body: bytes) -> bytes:
    return _request("POST /", body, f"X-Amz-Target: AmazonSQS.{operation}")


SQS = (
    _target("CreateQueue", b'{"QueueName":"t","Attributes":{"VisibilityTimeout":"1"}}') + _target("ListQueues", b"{}"),
    _target("SendMessage", b"{" + _URL + b',"MessageBody":"x","DelaySeconds":0,"MessageGroupId":"g"}'),
    _target("SendMessageBatch", b"{" + _URL + b',"Entries":[{"Id":"a","MessageBody":"x"}]}'),
    _target("ReceiveMessage", b"{" + _URL + b',"MaxNumberOfMessages":10,"AttributeNames":["All"]}'),
    _target("DeleteMessage", b"{" + _URL + b',"ReceiptHandle":"AAAAAAAAAAEAAAABAAAAAAAAAAEAAAAA"}'),
    _request("POST /", b"Action=SendMessage&QueueUrl=/0/t&MessageBody=x&MessageAttribute.1.Name=a", _FORM),
    _request("GET /000000000000/t?Action=ReceiveMessage&AttributeName.1=All&Version=2012-11-05"),
)

_METRIC = bytes.fromhex(
    "0a380a181203666f6f1880c8d7d188a0e7cb17210000000000404540"
    "12180a0c0880c8afa025108094ebdc031208088080f89492a5271a020805"
)
_SAMPLE = bytes.fromhex(
    "080112340a080a0472657173100312280a261a240a220a0012180a0c0880c8afa025108094ebdc031208088080f89492a5271a0032020801"
)


def _message(shard: int, value: bytes) -> bytes:
    metadata = bytes((8, shard, 16, 1)) + bytes.fromhex("188080a8b1e39fe7cb17")
    head = bytes((0x0A, len(metadata))) + metadata
    return _sized(head + bytes((0x12, len(value))) + value if value else head)


M3MSG = (
    _message(5, b"hello") + _message(0, b"") + bytes(4),
    _message(5, _METRIC) * 3 + _message(6, _SAMPLE),
    b"".join(_message(number, _METRIC) for number in range(40)),
    _message(1, _SAMPLE) * 30,
    _sized(b"\x1a\x03abc\x0a\x02\x10\x09\x12\x01z"),
)

TIMELINE = (
    _request("PUT /v1/topics/t", b'{"bucket_count":4}') + _request("GET /v1/topics/t"),
    _request(
        "POST /v1/producer-handshake",
        b'{"topic_id":"t","producer_group_id":"g","producer_id":"p","cluster":"penstock"}',
    ),
    _request("POST /v1/consumer-handshake", b'{"topic_id":"t","consumer_id":"c","lease_timeout_ms":1000}'),
    _request("POST /v1/messages", b'{"session_id":"x","messages":[{"id":"a","due_ms":1,"body":"b"},{"delay_ms":5}]}'),
    _request("POST /v1/messages/release", b'{"session_id":"x","messages":[{"id":"a","version":2,"new_ts_ms":9}]}'),
    _request("GET /v1/topics/t/count?status=waiting&from_ms=1") + _request("GET /v1/info"),
    _request("POST /v1/lease", b'{"session_id":"x","limit":3,"wait_ms":1}')
    + _request("POST /v1/ping", b'{"local_ts_ms":1}'),
)

DORY = (
    encode("t", b"hello") + encode("t", b"", b"key", partition_key=7),
    encode("t", b"x" * 20) * 40,
    b"".join(encode(f"t{number % 3}", b"x" * number, partition_key=number) for number in range(40)),
    b"\0\0\0\4" * 40 + encode("t", b"after"),
    encode("t", b"part")[:-2],
)

_HELLO = Hello(VERSION, "test", "n2", "n1", b"1" * NONCE_BYTES)

PEERS = (
    written(_HELLO),
    written(_HELLO) + written(Visit(b"2" * 32, "publish", Carried(), b"{}")),
    written(Challenge(VERSION, "n1", b"1" * NONCE_BYTES, b"2" * 32)) + written(Welcome()),
    written(Refused("forbidden", "no")),
)

DORY_PAGES = (
    _request("GET /") + _request("GET /queues/json") + _request("GET /discards/plain"),
    _request("GET /msg_debug/add_topic/t%20u") + _request("GET /msg_debug/get_topics"),
    _request("GET /msg_debug/del_all_topics") + _request("GET /msg_debug/truncate_files"),
    _request("POST /metadata_update", b"x=1"),
)

#: By the key of the listener's port, or of its socket.
BY_PORT = {
    "nsq.tcp_port": NSQ_TCP,
    "nsq.http_port": NSQ_HTTP,
    "nsq.lookup_tcp_port": LOOKUP_TCP,
    "nsq.lookup_http_port": LOOKUP_HTTP,
    "dynamiq.port": DYNAMIQ,
    "m3msg.port": M3MSG,
    "cluster.port": PEERS,
    "dory.tcp_port": DORY,
    "dory.unix_stream_path": DORY,
    "dory.unix_datagram_path": DORY,
    "dory.http_port": DORY_PAGES,
    "timeline.port": TIMELINE,
    "api.port": API,
    "flight.port": FLIGHT,
    "sqs.port": SQS,
}
