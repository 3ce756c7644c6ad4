"""Join three streams with different windows: orders, their payments, and machines with free capacity.

An order joins its payment (an equality) and every machine with enough free hours (an inequality). The windows
are ten minutes of orders, one minute of payments and the last four machine reports.

    python examples/three_streams.py
"""

import pyarrow as pa

import handshake as hs

orders = pa.schema([("t", pa.timestamp("s")), ("id", pa.int64()), ("hours", pa.float64())])
payments = pa.schema([("t", pa.timestamp("s")), ("order_id", pa.int64()), ("amount", pa.float64())])
machines = pa.schema([("t", pa.timestamp("s")), ("machine", pa.string()), ("free", pa.float64())])

with hs.MultiJoin(
    {"o": orders, "p": payments, "m": machines},
    "o.id = p.order_id AND o.hours <= m.free AND p.amount > 0",
    windows={"o": "10 minutes", "p": "1 minute", "m": hs.Tuples(4)},
    time="t",
    cores=1,
) as join:
    arrivals = [
        ("m", {"t": [0, 0], "machine": ["mill", "lathe"], "free": [2.0, 6.0]}),
        ("o", {"t": [5, 8], "id": [1, 2], "hours": [4.0, 1.5]}),
        ("p", {"t": [300], "order_id": [1], "amount": [99.0]}),
        ("p", {"t": [310, 311], "order_id": [2, 3], "amount": [20.0, 35.0]}),
        ("o", {"t": [330, 400], "id": [3, 3], "hours": [1.0, 1.0]}),
    ]
    for stream, tuples in arrivals:
        for batch in join.push(stream, tuples):
            for row in batch.sort_by("machine").to_pylist():
                print(f"order {row['id']} ({row['amount']:.0f} paid) on the {row['machine']}")
    figures = join.metrics()
    print(figures.rows, "tuples,", figures.results, "results")
    for stream in figures.streams:
        print(f"a tuple of {stream.name} goes through {' and '.join(stream.order)}")
